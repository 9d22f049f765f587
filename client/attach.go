package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// AttachEvent is one thing that an attach said. One of Data, Gap, Process and
// Exit is set.
type AttachEvent struct {
	// Stream is where Data came from.
	Stream api.Stream
	// Position is the position of the first byte of Data; see api.LogEntry.
	Position int64
	// Data is valid until the next Recv.
	Data []byte
	// Gap says that output is missing before the next Data.
	Gap *api.Gap
	// Process is the record when its state has changed.
	Process *api.Process
	// Exit is how the process ended. It comes last.
	Exit *api.Result
}

// Attachment is a client's place at a process. One goroutine at a time may call
// Recv; the other methods may be called from any. The caller must call
// Recv, which learns that input arrived and that the connection broke.
//
// A connection that breaks is made again by Recv, after 3 s, doubling to 60 s.
// The attach goes on at the same position, and input that the process may not
// have got is sent again, with its offset, so that the process gets it once.
// Until then Signal and Resize fail with an error that says Retryable.
//
// An Attachment lives no longer than the context that it was made with. The
// process is neither held up nor ended by what becomes of it.
type Attachment struct {
	c       *Client
	path    string
	ctx     context.Context
	cancel  context.CancelFunc
	started api.Started
	wg      sync.WaitGroup // of feed

	mu      sync.Mutex
	req     api.AttachRequest // of the next connection
	link    *attachLink       // nil without a connection
	in      pending
	end     error         // what Recv returns for good
	changed chan struct{} // closed and replaced when anything here does

	// Of Recv alone.
	next   int64 // position of the byte that comes next
	wait   backoff
	why    error // what broke the last connection
	unread []AttachEvent
}

// Attach joins a process. Its output comes from Since on, and an attach to one
// that has ended gives what is kept, and the exit. The first connection that
// fails is an error at once.
func (c *Client) Attach(ctx context.Context, ref, id string, r api.AttachRequest) (*Attachment, error) {
	path, err := processPath(ref, id, "/attach")
	if err != nil {
		return nil, err
	}
	r.Write = r.Write || r.Exclusive
	a := &Attachment{c: c, path: path, req: r, changed: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	l, err := a.connect()
	if err != nil {
		a.cancel()
		return nil, err
	}
	a.started, a.next, a.in.base = l.started, l.started.Position, l.started.StdinOffset
	if r.StdinOffset != nil {
		a.in.base = *r.StdinOffset
	}
	a.link = l
	if r.Write {
		a.wg.Go(a.feed)
	}
	return a, nil
}

// Started says where output and input began.
func (a *Attachment) Started() api.Started { return a.started }

// Recv waits for the next event. After the event with Exit it returns io.EOF. It
// ends with an error of the daemon that is not retryable, or with the context.
func (a *Attachment) Recv() (AttachEvent, error) {
	if len(a.unread) > 0 {
		ev := a.unread[0]
		a.unread = a.unread[1:]
		return ev, nil
	}
	for {
		l, end := a.state()
		if end != nil {
			return AttachEvent{}, end
		}
		if l == nil {
			if err := a.reconnect(); err != nil {
				a.finish(err)
			}
			continue
		}
		ev, err := a.read(l)
		switch {
		case err != nil:
			a.drop(l)
			a.why = err
			if a.c.noReconnect || !passing(err) || a.ctx.Err() != nil {
				a.finish(err)
			}
		case ev == nil:
		case ev.Exit != nil:
			l.hangUp()
			a.finish(io.EOF)
			return *ev, nil
		default:
			return *ev, nil
		}
	}
}

// Copy writes all output to stdout and stderr, either of which may be nil, and
// returns how the process ended.
func (a *Attachment) Copy(stdout, stderr io.Writer) (*api.Result, error) {
	for {
		ev, err := a.Recv()
		if err != nil {
			return nil, err
		}
		if ev.Exit != nil {
			return ev.Exit, nil
		}
		if len(ev.Data) == 0 {
			continue
		}
		if _, err := outputOf(ev.Stream, stdout, stderr).Write(ev.Data); err != nil {
			return nil, err
		}
	}
}

// Write gives the process p as input. It returns when p is on its way, of which
// up to 1 MiB is kept until the process has it; then it blocks, unless there is
// no connection: that is an error that says Retryable.
func (a *Attachment) Write(p []byte) (int, error) {
	n := 0
	for {
		a.mu.Lock()
		err := a.writable()
		if err == nil {
			n += a.in.add(p[n:])
			a.wakeLocked()
			if n < len(p) && a.link == nil {
				err = a.c.reconnecting()
			}
		}
		changed := a.changed
		a.mu.Unlock()
		if err != nil || n == len(p) {
			return n, err
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return n, a.c.failed(a.ctx, a.ctx.Err())
		}
	}
}

// writable is called with the lock held.
func (a *Attachment) writable() error {
	switch {
	case !a.req.Write && !a.in.closed:
		return api.Errorf(api.CodeState, "this attach does not write").WithHint("attach with Write")
	case a.in.closed:
		return api.Errorf(api.CodeState, "the input was closed")
	case errors.Is(a.end, io.EOF):
		return api.Errorf(api.CodeState, "the process has ended")
	}
	return a.end
}

// CloseWrite ends the process's input, after what was written.
func (a *Attachment) CloseWrite() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.closed {
		return nil
	}
	if err := a.writable(); err != nil {
		return err
	}
	a.in.closed = true
	a.wakeLocked()
	return nil
}

// Acknowledged is the offset behind the last byte of input that the process is
// known to have.
func (a *Attachment) Acknowledged() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.in.base
}

// Resize changes the process's terminal. The size is asked for again by a new
// connection.
func (a *Attachment) Resize(rows, cols uint16) error {
	a.mu.Lock()
	a.req.Rows, a.req.Cols = rows, cols
	a.mu.Unlock()
	return a.send(resizeMessage(rows, cols))
}

// Signal sends a signal, named as in Result.Signal, to the process's group.
func (a *Attachment) Signal(name string) error {
	m, err := signalMessage(name)
	if err != nil {
		return err
	}
	return a.send(m)
}

// Close leaves the process, which goes on. Input that was not acknowledged may
// be lost. A Recv or Write in progress returns. It is idempotent.
func (a *Attachment) Close() error {
	a.finish(api.Errorf(api.CodeCanceled, "the attach was closed"))
	a.wg.Wait()
	return nil
}

func (a *Attachment) send(m api.ClientMessage) error {
	l, end := a.state()
	switch {
	case errors.Is(end, io.EOF):
		return api.Errorf(api.CodeState, "the process has ended")
	case end != nil:
		return end
	case l == nil:
		return a.c.reconnecting()
	}
	if err := a.c.sendMessage(a.ctx, l.conn, m); err != nil {
		if a.ctx.Err() == nil && passing(err) {
			return a.c.reconnecting().WithCause(err)
		}
		return err
	}
	return nil
}

func (a *Attachment) state() (*attachLink, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link, a.end
}

// finish ends the Attachment for good; the first reason stays.
func (a *Attachment) finish(err error) {
	a.mu.Lock()
	if a.end == nil {
		a.end = err
	}
	l := a.link
	a.link = nil
	a.wakeLocked()
	a.mu.Unlock()
	if l != nil {
		l.close()
	}
	a.cancel()
}

// drop gives a broken connection up.
func (a *Attachment) drop(l *attachLink) {
	a.mu.Lock()
	if a.link == l {
		a.link = nil
	}
	a.wakeLocked()
	a.mu.Unlock()
	l.close()
}

func (a *Attachment) wakeLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// AttachEvent is one message of an attach. One of Data, Gap, Process and Exit is set.
type AttachEvent struct {
	// Stream is the stream that Data belongs to.
	Stream api.Stream
	// Position is the position of the first byte of Data. See api.LogEntry.
	Position int64
	// Data is valid until the next Recv.
	Data []byte
	// Gap means that output is missing before the next Data.
	Gap *api.Gap
	// Process is the record. It is sent when its state has changed.
	Process *api.Process
	// Exit is the result of the process. It comes last.
	Exit *api.Result
}

// Attachment is a client's attachment to a process. Only one goroutine at a time can call Recv. The
// other methods can be called from any goroutine. The caller must keep calling Recv, because Recv
// detects acknowledged input and broken connections.
//
// Recv replaces a connection that breaks, after a wait of 3 s that doubles up to 60 s. The attach
// continues at the same position. Input that the process may not have received is sent again with
// its offset, so the process gets it once. Until then Signal and Resize fail with a retryable
// error.
//
// An Attachment ends when the context that it was created with ends. It neither blocks nor ends the
// process.
type Attachment struct {
	c       *Client
	path    string
	ctx     context.Context
	cancel  context.CancelFunc
	started api.Started
	wg      sync.WaitGroup // for feed

	mu      sync.Mutex
	req     api.AttachRequest // for the next connection
	link    *attachLink       // nil while there is no connection
	in      pending
	end     error         // the final error of Recv
	changed chan struct{} // closed and replaced when a field here changes

	// Only Recv uses these fields.
	next   int64 // position of the next byte
	wait   backoff
	why    error // the error that broke the last connection
	unread []AttachEvent
}

// Attach attaches to a process. The output begins at Since. For a process that has ended, the
// attach returns the kept output and the exit. If the first connection fails, Attach returns the
// error at once.
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

// Started returns where output and input began.
func (a *Attachment) Started() api.Started { return a.started }

// Recv waits for the next event. After the event with Exit it returns io.EOF. It ends with an error
// of the daemon that a retry cannot fix, or when the context ends.
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

// Copy writes all output to stdout and stderr, either of which can be nil, and returns the result
// of the process.
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

// Write sends p to the process as input. It returns when p is buffered: up to 1 MiB is kept until
// the process has received it. When the buffer is full, Write blocks, or fails with a retryable
// error if there is no connection.
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

// writable must be called with the lock held.
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

// CloseWrite closes the process's input after everything that was written.
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

// Acknowledged returns the offset after the last input byte that the process is known to have
// received.
func (a *Attachment) Acknowledged() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.in.base
}

// Resize changes the size of the process's terminal. A new connection sends the size again.
func (a *Attachment) Resize(rows, cols uint16) error {
	a.mu.Lock()
	a.req.Rows, a.req.Cols = rows, cols
	a.mu.Unlock()
	return a.send(resizeMessage(rows, cols))
}

// Signal sends a signal to the process group. name is as in Result.Signal.
func (a *Attachment) Signal(name string) error {
	m, err := signalMessage(name)
	if err != nil {
		return err
	}
	return a.send(m)
}

// Close detaches from the process, which continues. Input that was not acknowledged may be lost. A
// Recv or Write in progress returns. Close is idempotent.
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

// finish ends the Attachment. Only the first error is kept.
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

// drop gives up a broken connection.
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

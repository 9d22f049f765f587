package process

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/spool"
)

const (
	// maxReaders bounds who is attached to one process.
	maxReaders = 1024
	// offsetTime is how long an attach that writes may wait for a write before it,
	// to know where its own input begins.
	offsetTime = 2 * time.Second
)

// AttachEvent is one thing that an attach tells: output, or one of the others.
type AttachEvent struct {
	Stream api.Stream
	// Position is where Data begins, in both streams together.
	Position int64
	// Data is valid until the next Recv.
	Data []byte
	// Gap: output is missing here.
	Gap *api.Gap
	// Process is the record, whenever its state has changed.
	Process *api.Process
	// Stdin says how much input has been written to the process.
	Stdin *api.StdinAck
	// Exit is the last.
	Exit *api.Result
}

// Attachment is one reader of a process, which may also have its input. It reads from the log in
// the daemon at its own pace and blocks no other reader. Only one goroutine at a time can call
// Recv. The other methods can be called concurrently. The caller closes it, which leaves the
// process running.
type Attachment struct {
	m         *Runner
	s         *Table
	p         *process
	started   api.Started
	exclusive bool

	ctx     context.Context
	cancel  context.CancelFunc
	closing func()
	feeder  sync.WaitGroup
	in      *inputQueue // nil where it does not write
	next    int64       // offset of the next input; -1 appends. For the feeder.

	receiving sync.Mutex // held by Recv, and by Close once Recv has returned
	log       *spool.Log
	reader    *spool.Reader
	sided     bool // the last event was no output
	drained   bool // all output was told
	over      bool // the exit was told

	mu sync.Mutex // guards what follows
	// shown and told are the states of the process that were last noted and told.
	shown *api.Process
	told  api.ProcessState
	ack   *api.StdinAck
	// failed is why the input ended, where that is no affair of the process.
	failed error
	// waiting is what Recv waits with; wake ends it when there is something else
	// than output.
	waiting context.Context
	wake    context.CancelFunc
}

// Attach joins a process. An ended one gives what is kept of its output and then
// its exit. The end of ctx detaches, as Close does.
func (m *Runner) Attach(ctx context.Context, caller policy.Caller, ref, id string, r api.AttachRequest) (*Attachment, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbAttach, ref)
	if err != nil {
		return nil, err
	}
	if r.StdinOffset != nil && *r.StdinOffset < 0 {
		return nil, api.Invalid("stdin_offset", "an offset of %d was given", *r.StdinOffset).WithHint("count the bytes since the process's start")
	}
	p, err := m.managed(ctx, s, id)
	if err != nil {
		return nil, err
	}
	log, closeLog, err := p.openLog()
	if errors.Is(err, api.ErrNotFound) {
		return nil, noProcess(s, id)
	}
	if err != nil {
		return nil, err
	}
	a := &Attachment{m: m, s: s, p: p, exclusive: r.Exclusive, log: log, next: -1}
	a.ctx, a.cancel = s.sandbox.Attended(ctx)
	a.waiting, a.wake = context.WithCancel(a.ctx)
	release, daemon := s.sandbox.Use(), context.AfterFunc(m.o.Context, a.cancel)
	a.closing = sync.OnceFunc(func() {
		a.cancel()
		a.feeder.Wait()
		p.detach(a)
		a.receiving.Lock()
		defer a.receiving.Unlock()
		daemon()
		closeLog()
		release()
	})
	if err := a.begin(r); err != nil {
		a.closing()
		return nil, err
	}
	context.AfterFunc(a.ctx, a.closing)
	return a, nil
}

// begin joins the process and finds out where output and input begin.
func (a *Attachment) begin(r api.AttachRequest) error {
	ended, err := a.p.join(a, r.Write || r.Exclusive)
	if err != nil {
		return err
	}
	if r.Rows > 0 && r.Cols > 0 && !ended {
		if err := a.m.resize(a.ctx, a.s, a.p.id, r.Rows, r.Cols); err != nil {
			return err
		}
	}
	a.started.ExecID = a.p.id
	if (r.Write || r.Exclusive) && !ended {
		if err := a.beginInput(r.StdinOffset); err != nil {
			return err
		}
	}
	since := a.log.End()
	if r.Since != nil && *r.Since < 0 {
		since = max(since+*r.Since, 0)
	} else if r.Since != nil {
		since = min(since, *r.Since)
	}
	a.started.Position = since
	a.reader = a.log.Reader(spool.ReadOptions{Since: since})
	return nil
}

// join adds an attach to a process. An ended one has no input to be held.
func (p *process) join(a *Attachment, write bool) (ended bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ended = p.rec.State.Ended()
	switch {
	case p.removed:
		return ended, noProcess(a.s, p.id)
	case len(p.readers) >= maxReaders:
		err := api.Errorf(api.CodeNoCapacity, "%d clients are attached to process %s, which is the most", maxReaders, p.id)
		err.Retryable, err.RetryAfterMS = true, 1000
		return ended, err
	case write && !ended && p.writer != nil:
		return ended, inputHeld(p.id)
	}
	p.readers[a] = struct{}{}
	if write && !ended {
		p.writer = a
	}
	a.told = p.rec.State
	p.broadcast()
	return ended, nil
}

func (p *process) detach(a *Attachment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.readers, a)
	if p.writer == a {
		p.writer = nil
	}
	p.broadcast()
}

// beginInput finds out where the input of the process stands, and starts to feed
// it. An input that is closed is no error until something is written.
func (a *Attachment) beginInput(offset *int64) error {
	ctx, cancel := context.WithTimeout(a.ctx, offsetTime)
	defer cancel()
	given, err := a.m.give(ctx, a.s, a.p, -1, nil, false)
	switch {
	case err == nil:
	case api.CodeOf(err) == api.CodeState && a.s.sandbox.Info().State == api.StateRunning:
		rec, _ := a.p.snapshot()
		given = rec.StdinOffset
	case a.ctx.Err() == nil && ctx.Err() != nil:
		busy := api.Errorf(api.CodeUnavailable, "other input for process %s is still being written", a.p.id).WithCause(err)
		busy.Retryable = true
		return busy
	default:
		return err
	}
	a.started.StdinOffset = given
	if offset != nil {
		if *offset > given {
			return api.Invalid("stdin_offset", "input from offset %d was announced, and process %s has been given %d bytes", *offset, a.p.id, given).
				WithHint("begin at %d or before", given)
		}
		a.next, a.started.StdinOffset = *offset, *offset
	}
	a.in = newInputQueue()
	a.feeder.Go(a.feed)
	return nil
}

// feed gives the process what is queued.
func (a *Attachment) feed() {
	buf := make([]byte, stdinChunk)
	for {
		n, ok := a.in.take(a.ctx, buf)
		if !ok {
			break
		}
		given, err := a.m.give(a.ctx, a.s, a.p, a.next, buf[:n], true)
		if err != nil {
			a.inputFailed(err)
			return
		}
		if a.next >= 0 {
			a.next += int64(n)
		}
		a.mu.Lock()
		a.ack = &api.StdinAck{Offset: given}
		a.wake()
		a.mu.Unlock()
	}
	if a.ctx.Err() != nil {
		return
	}
	if err := a.m.endInput(a.ctx, a.s, a.p, true); err != nil {
		a.inputFailed(err)
	}
}

// inputFailed refuses more input. A process that accepts no more input continues, and so does its
// output. Any other failure ends the attach, because the failed input may have been the last and
// the error would otherwise be lost.
func (a *Attachment) inputFailed(err error) {
	a.in.fail(err)
	if api.CodeOf(err) == api.CodeState || a.ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
	a.wake()
}

// note is told of every change of the record. The caller holds p.mu.
func (a *Attachment) note(rec api.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shown = &rec
	a.wake()
}

// Started says where output and input begin.
func (a *Attachment) Started() api.Started { return a.started }

// Recv waits for the next event. The last is the exit; after that it returns
// io.EOF. When the Attachment is closed it returns an error.
func (a *Attachment) Recv() (AttachEvent, error) {
	a.receiving.Lock()
	defer a.receiving.Unlock()
	for {
		if a.over {
			return AttachEvent{}, io.EOF
		}
		if a.ctx.Err() != nil {
			return AttachEvent{}, a.gone()
		}
		// Acknowledgements must not keep output from being told, nor the other way
		// round: they take turns.
		if !a.sided || a.drained {
			ev, ok, err := a.side()
			if err != nil {
				return AttachEvent{}, err
			}
			if ok {
				a.sided = true
				return ev, nil
			}
		}
		if a.drained {
			return a.exit()
		}
		ctx := a.ctx
		if !a.sided {
			ctx = a.wait()
		}
		rec, err := a.reader.Next(ctx, !a.sided)
		a.sided = false
		switch {
		case err == nil && rec.Gap > 0:
			return AttachEvent{Gap: &api.Gap{Position: rec.Position, Bytes: rec.Gap}}, nil
		case err == nil:
			return AttachEvent{Stream: rec.Stream, Position: rec.Position, Data: rec.Data}, nil
		case errors.Is(err, io.EOF):
			a.drained = true
		case errors.Is(err, spool.ErrNoMore), errors.Is(err, context.Canceled):
		case a.ctx.Err() != nil:
			return AttachEvent{}, a.gone()
		default:
			return AttachEvent{}, api.Errorf(api.CodeInternal, "the log of process %s cannot be read", a.p.id).WithCause(err)
		}
	}
}

// wait is what Recv waits for output with.
func (a *Attachment) wait() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting.Err() != nil && !a.pending() {
		a.waiting, a.wake = context.WithCancel(a.ctx)
	}
	return a.waiting
}

// pending reports whether there is something to tell that is not output. The
// caller holds a.mu.
func (a *Attachment) pending() bool { return a.ack != nil || a.shown != nil || a.failed != nil }

// side takes what is to be told and is not output. An end is told behind all
// output, with the exit.
func (a *Attachment) side() (ev AttachEvent, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack := a.ack; ack != nil {
		a.ack = nil
		return AttachEvent{Stdin: ack}, true, nil
	}
	rec := a.shown
	a.shown = nil
	if rec == nil || rec.State == a.told || rec.State.Ended() {
		return AttachEvent{}, false, a.failed
	}
	a.told = rec.State
	return AttachEvent{Process: rec}, true, nil
}

// exit waits for the record of the end, which comes a moment after the output,
// and tells the state and then the exit.
func (a *Attachment) exit() (AttachEvent, error) {
	for {
		rec, changed := a.p.snapshot()
		if rec.State.Ended() {
			if a.told != rec.State {
				a.told = rec.State
				return AttachEvent{Process: &rec}, nil
			}
			a.over = true
			res := resultOf(rec, a.s.sandbox.Over())
			return AttachEvent{Exit: &res}, nil
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return AttachEvent{}, a.gone()
		}
	}
}

// gone says why there are no more events.
func (a *Attachment) gone() error {
	if a.m.o.Context.Err() != nil {
		return shuttingDown()
	}
	return silenced(a.ctx, api.Errorf(api.CodeCanceled, "the attach to process %s was given up", a.p.id))
}

// Write queues input, and waits while more than 1 MiB of it waits for the
// process. Recv tells when it has been written.
func (a *Attachment) Write(p []byte) error {
	if a.in == nil {
		return a.noInput()
	}
	return a.in.put(a.ctx, p)
}

// CloseWrite ends the input of the process, behind what is queued.
func (a *Attachment) CloseWrite() error {
	if a.in == nil {
		return a.noInput()
	}
	return a.in.close()
}

func (a *Attachment) noInput() error {
	if ended, _ := a.p.ended(); ended {
		return hasEnded(a.p.id)
	}
	return api.Errorf(api.CodeState, "this attach to process %s does not have its input", a.p.id).WithHint("attach with write set")
}

// Resize changes the size of the process's terminal.
func (a *Attachment) Resize(rows, cols uint16) error {
	return a.m.resize(a.ctx, a.s, a.p.id, rows, cols)
}

// Signal sends a signal to the process's group.
func (a *Attachment) Signal(name string) error {
	return a.m.signal(a.ctx, a.s, a.p.id, api.SignalRequest{Signal: name, Scope: api.ScopeGroup})
}

// Close detaches. It wakes all calls in progress, waits for them, and can be repeated.
func (a *Attachment) Close() error {
	a.closing()
	return nil
}

package mockcore

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

// attachment is a place at a managed process. The Core's lock guards all fields
// that are not of Recv alone.
type attachment struct {
	p         *managed
	started   api.Started
	next      int64
	state     api.ProcessState
	ended     bool
	write     bool
	exclusive bool
	stdin     int64 // offset of the next byte from the client
	acked     int64
	closed    bool
}

// Attach gives what is kept from Since on.
func (c *Core) Attach(_ context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (httpapi.Attachment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.process(caller, ref, id)
	if err != nil {
		return nil, err
	}
	a := &attachment{p: p, write: r.Write || r.Exclusive, exclusive: r.Exclusive, next: p.rec.Position, stdin: p.rec.StdinOffset, state: p.rec.State}
	if r.Since != nil {
		if a.next = *r.Since; a.next < 0 {
			a.next = max(0, p.rec.Position+a.next)
		}
	}
	if r.StdinOffset != nil {
		a.stdin = *r.StdinOffset
	}
	a.acked = a.stdin
	if r.Rows > 0 && r.Cols > 0 {
		if err := p.resize(api.Size{Rows: r.Rows, Cols: r.Cols}); err != nil {
			return nil, err
		}
	}
	if a.write && p.rec.Running {
		if p.writer != nil {
			return nil, inputHeld(id)
		}
		p.writer = a
	}
	a.started = api.Started{ExecID: id, Position: a.next, StdinOffset: a.stdin}
	c.change()
	return a, nil
}

func inputHeld(id string) error {
	err := api.Errorf(api.CodeConflict, "another client has the input of process %q", id)
	err.Retryable, err.RetryAfterMS = true, 1000
	return err
}

func (a *attachment) Started() api.Started { return a.started }

func (a *attachment) Recv() (core.AttachEvent, error) {
	p := a.p
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for {
		if ev, ok := a.event(); ok {
			return ev, nil
		}
		if a.ended {
			return core.AttachEvent{}, io.EOF
		}
		if a.closed {
			return core.AttachEvent{}, api.Errorf(api.CodeCanceled, "the attach was closed")
		}
		ch := p.c.changed
		p.c.mu.Unlock()
		<-ch
		p.c.mu.Lock()
	}
}

// event is what there is to say now.
func (a *attachment) event() (core.AttachEvent, bool) {
	p := a.p
	if a.closed || a.ended {
		return core.AttachEvent{}, false
	}
	if a.write && a.stdin > a.acked {
		a.acked = a.stdin
		return core.AttachEvent{Stdin: &api.StdinAck{Offset: a.acked}}, true
	}
	if a.next < p.kept {
		gap := api.Gap{Position: p.kept, Bytes: p.kept - a.next}
		a.next = p.kept
		return core.AttachEvent{Gap: &gap}, true
	}
	for _, e := range p.log {
		if end := e.Position + int64(len(e.Data)); a.next < end {
			ev := core.AttachEvent{Stream: e.Stream, Position: a.next, Data: e.Data[a.next-e.Position:]}
			a.next = end
			return ev, true
		}
	}
	if a.state != p.rec.State {
		a.state = p.rec.State
		rec := p.rec
		return core.AttachEvent{Process: &rec}, true
	}
	if !p.rec.Running {
		a.ended = true
		return core.AttachEvent{Exit: &api.Result{
			ExecID: p.rec.ExecID, ExitCode: p.rec.ExitCode, Signal: p.rec.Signal, Stdout: api.Bytes{}, Stderr: api.Bytes{},
		}}, true
	}
	return core.AttachEvent{}, false
}

func (a *attachment) Write(data []byte) error {
	a.p.c.mu.Lock()
	defer a.p.c.mu.Unlock()
	if !a.write {
		return api.Invalid("write", "this attach does not write").WithHint("attach with write")
	}
	end, err := a.p.input(a.stdin, data)
	if err != nil {
		return err
	}
	a.stdin = end
	a.p.c.change()
	return nil
}

func (a *attachment) CloseWrite() error {
	a.p.c.mu.Lock()
	defer a.p.c.mu.Unlock()
	if !a.write {
		return api.Invalid("write", "this attach does not write").WithHint("attach with write")
	}
	a.p.closeInput()
	return nil
}

func (a *attachment) Resize(rows, cols uint16) error {
	a.p.c.mu.Lock()
	defer a.p.c.mu.Unlock()
	return a.p.resize(api.Size{Rows: rows, Cols: cols})
}

func (a *attachment) Signal(name string) error {
	a.p.c.mu.Lock()
	defer a.p.c.mu.Unlock()
	a.p.kill(name)
	return nil
}

func (a *attachment) Close() error {
	a.p.c.mu.Lock()
	defer a.p.c.mu.Unlock()
	a.closed = true
	if a.p.writer == a {
		a.p.writer = nil
	}
	a.p.c.change()
	return nil
}

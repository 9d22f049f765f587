package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// stdinChunk is how much input one call to the agent carries.
	stdinChunk = 64 << 10
	// maxInput is how much input of one attach waits for its process.
	maxInput = 1 << 20
)

// WriteStdin writes the content of r to the input of a process, at offset or, if that is nil, after
// the input that it already has. If end is set, it then closes the input. Bytes before the present
// offset are repeats and are skipped. If they differ from what the process got there, or are too
// old to compare, another client has written in the meantime, which is api.CodeConflict. It returns
// when everything has been written to the process. On error, the answer says how much was.
func (m *Runner) WriteStdin(ctx context.Context, caller policy.Caller, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error) {
	var ack api.StdinAck
	s, err := m.o.Find(ctx, caller, policy.VerbStdin, ref)
	if err != nil {
		return ack, err
	}
	defer s.sandbox.Use()()
	p, err := m.managed(ctx, s, id)
	if err != nil {
		return ack, err
	}
	at := int64(-1)
	if offset != nil {
		if at = *offset; at < 0 {
			return ack, api.Invalid("offset", "an offset of %d was given", at).WithHint("count the bytes since the process's start")
		}
	}
	buf := make([]byte, stdinChunk)
	for first := true; ; first = false {
		n, rerr := io.ReadFull(r, buf)
		if n > 0 || first {
			if err := p.inputFree(nil); err != nil {
				return ack, err
			}
			given, err := m.give(ctx, s, p, at, buf[:n], false)
			ack.Offset = max(ack.Offset, given)
			if err != nil {
				return ack, p.explainInput(err)
			}
			if at >= 0 {
				at += int64(n)
			}
		}
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
			break
		}
		if rerr != nil {
			return ack, api.Errorf(api.CodeCanceled, "the input broke off at offset %d: %w", ack.Offset, rerr)
		}
	}
	if offset != nil && at > *offset && ack.Offset-at >= agent.InputKept {
		return ack, api.Errorf(api.CodeConflict, "the input ends at offset %d, and process %s has been given %d bytes: it cannot be told whether they began with this", at, id, ack.Offset).
			WithHint("read its stdin_offset and go on from there, or write without an offset")
	}
	if end {
		if err := p.inputFree(nil); err != nil {
			return ack, err
		}
		return ack, m.endInput(ctx, s, p, false)
	}
	return ack, nil
}

// managed returns a managed process, or says why it does not exist.
func (m *Runner) managed(ctx context.Context, s *Table, id string) (*process, error) {
	if p := s.get(id); p != nil {
		return p, nil
	}
	if _, err := m.process(ctx, s, id); err != nil {
		return nil, err
	}
	return nil, notManaged(id)
}

// inputFree refuses input while an attach that is not the caller's has it for
// itself.
func (p *process) inputFree(mine *Attachment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writer != nil && p.writer != mine && p.writer.exclusive {
		return inputHeld(p.id)
	}
	return nil
}

// explainInput says why a process that goes on takes no input.
func (p *process) explainInput(err error) error {
	rec, _ := p.snapshot()
	if api.CodeOf(err) != api.CodeState || rec.StdinOpen || rec.State.Ended() || rec.State == api.ProcessBackoff {
		return err
	}
	return api.Errorf(api.CodeState, "the input of process %s is not open", p.id).
		WithHint("it was closed, or the start did not ask for it: open_stdin, or cloche start --open-stdin").WithCause(err)
}

// inputHeld is the error for who wants what another attach has. That one may be
// a connection which is dead and has not been missed yet.
func inputHeld(id string) error {
	err := api.Errorf(api.CodeConflict, "another attach holds the input of process %s", id).
		WithHint("attach without writing, or retry when that one has detached")
	err.Retryable, err.RetryAfterMS = true, 1000
	return err
}

// give writes input to a process and returns how much it has been given then;
// an offset of -1 appends. One write at a time reaches the process. When the
// connection breaks, the offset makes it harmless to write again: once, or, for
// the patient, until the process or ctx ends.
func (m *Runner) give(ctx context.Context, s *Table, p *process, offset int64, data []byte, patient bool) (int64, error) {
	select {
	case p.stdin <- struct{}{}:
	case <-ctx.Done():
		return 0, CanceledCall(ctx.Err())
	}
	defer func() { <-p.stdin }()
	var given int64
	err := m.insist(ctx, s, p, patient, func(client *agent.Client) error {
		if offset < 0 && p.given < 0 {
			known, err := client.WriteStdin(ctx, p.id, -1, nil)
			if err != nil {
				return err
			}
			p.given = known
		}
		if offset < 0 {
			offset = p.given // fixed from here on: a repeat is one
		}
		var err error
		given, err = client.WriteStdin(ctx, p.id, offset, data)
		return err
	})
	if err != nil {
		p.given = -1
		return given, err
	}
	p.given = given
	return given, nil
}

// endInput closes the input of a process.
func (m *Runner) endInput(ctx context.Context, s *Table, p *process, patient bool) error {
	select {
	case p.stdin <- struct{}{}:
	case <-ctx.Done():
		return CanceledCall(ctx.Err())
	}
	defer func() { <-p.stdin }()
	return m.insist(ctx, s, p, patient, func(client *agent.Client) error { return client.CloseStdin(ctx, p.id) })
}

// insist makes a call that may be repeated, again when the connection broke under
// it. The patient also wait for a sandbox that is paused.
func (m *Runner) insist(ctx context.Context, s *Table, p *process, patient bool, call func(*agent.Client) error) error {
	var again retry
	for tries := 0; ; tries++ {
		if ended, _ := p.ended(); ended {
			return hasEnded(p.id)
		}
		client, err := s.sandbox.Agent(ctx)
		if err == nil {
			err = call(client)
		}
		if err == nil {
			return nil
		}
		paused := s.sandbox.Info().State.Held() && patient
		switch api.CodeOf(err) {
		case api.CodeUnavailable, api.CodeSandboxLost:
		default:
			if !paused {
				return err
			}
		}
		if ctx.Err() != nil {
			return CanceledCall(ctx.Err())
		}
		if !patient && (tries > 0 || errors.Is(err, agent.ErrSilent)) {
			return s.sandbox.Explain(err)
		}
		if !again.pause(ctx, s.sandbox.Ended()) {
			return s.sandbox.Explain(err)
		}
	}
}

// inputQueue is the input of one attach that waits for its process.
type inputQueue struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	end  bool
	err  error
	wake chan struct{} // closed, and replaced, whenever something changes
}

func newInputQueue() *inputQueue { return &inputQueue{wake: make(chan struct{})} }

// broadcast wakes both ends. The caller holds q.mu.
func (q *inputQueue) broadcast() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// put queues p and waits for space.
func (q *inputQueue) put(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		if ctx.Err() != nil {
			return CanceledCall(ctx.Err())
		}
		q.mu.Lock()
		if q.err != nil || q.end {
			err := q.err
			q.mu.Unlock()
			if err == nil {
				err = api.Errorf(api.CodeState, "the input was ended before")
			}
			return err
		}
		n := min(len(p), maxInput-q.buf.Len())
		q.buf.Write(p[:n])
		p = p[n:]
		if n > 0 {
			q.broadcast()
		}
		wake := q.wake
		q.mu.Unlock()
		if len(p) == 0 {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return CanceledCall(ctx.Err())
		}
	}
	return nil
}

// close queues the end of the input.
func (q *inputQueue) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end = true
	q.broadcast()
	return q.err
}

// fail makes every put return err.
func (q *inputQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	q.buf = bytes.Buffer{}
	q.broadcast()
}

// take waits for the next piece, which the caller then owns. ok is false when no more will come:
// the input was closed, or ctx has ended.
func (q *inputQueue) take(ctx context.Context, into []byte) (n int, ok bool) {
	for {
		q.mu.Lock()
		n, _ = q.buf.Read(into)
		end, wake := q.end, q.wake
		if n > 0 {
			q.broadcast()
		}
		q.mu.Unlock()
		switch {
		case n > 0:
			return n, true
		case end || ctx.Err() != nil:
			return 0, false
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

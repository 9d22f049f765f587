package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// errTooMuch: the agent sent more than it was asked for.
var errTooMuch = fmt.Errorf("%w: more bytes than asked for", wire.ErrFrame)

// sentKept is how much of the last input of a stream is kept, to send it again after a Reattach. It is more than a connection
// and the agent can hold that was not given to the program.
const sentKept = streamWindow + 4*wire.MaxData

// Stream is a streamed exec. Recv and Reattach are for one goroutine; the other methods are
// safe for concurrent use with them and each other, except Write with itself.
type Stream struct {
	execID string
	over   bool          // for Recv only
	have   wire.Reattach // for Recv and Reattach only

	mu sync.Mutex
	// in is the call that is received from, out the one that input is sent on. They differ while a Reattach sends input again.
	in, out *call
	// changed is closed when out is another, or when the stream is closed.
	changed chan struct{}
	closed  bool
	// sent is how much input was sent, kept the last of it, and ends how often it was ended.
	sent int64
	kept []byte
	ends int
}

// Event is one thing that a streamed exec reports: output, or at last its exit.
type Event struct {
	Stream api.Stream
	// Seq counts the output events of both streams from 0.
	Seq uint64
	// Data is valid until the next Recv.
	Data []byte
	// Exit is the result, without output; after it Recv returns io.EOF.
	Exit *api.Result
}

// Stream starts a program and returns when it has been executed, or why it could
// not be. Nothing of its output is lost while the stream is read: a program that
// writes faster waits. The end of ctx detaches.
func (c *Client) Stream(ctx context.Context, s Start) (*Stream, error) {
	x := s.wire()
	x.Input = true
	k, _, err := c.startStream(ctx, wire.Request{Op: wire.OpStream, Exec: x})
	if err != nil {
		return nil, err
	}
	return &Stream{in: k, out: k, execID: s.ExecID, changed: make(chan struct{})}, nil
}

// StreamAgain is Stream after one that failed with [ErrSaving], so that it is not known whether the program was started.
func (c *Client) StreamAgain(ctx context.Context, s Start) (*Stream, error) {
	st := &Stream{execID: s.ExecID, changed: make(chan struct{})}
	err := st.Reattach(ctx, c)
	if errors.Is(err, api.ErrNotFound) {
		return c.Stream(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	return st, nil
}

// startStream sends a request that a KindStarted frame answers, whose payload it returns.
func (c *Client) startStream(ctx context.Context, req wire.Request) (*call, []byte, error) {
	k, err := c.openIdle(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	kind, payload, err := k.next()
	if err == nil && kind != wire.KindStarted {
		err = unexpected(kind)
	}
	if err != nil {
		k.end()
		return nil, nil, err
	}
	return k, payload, nil
}

// Reattach continues the stream on another connection, after a call on it has failed with [ErrSaving]. What was lost of its
// input with the connection is sent again. A signal or a resize can be lost. The end of ctx detaches.
func (s *Stream) Reattach(ctx context.Context, c *Client) error {
	k, payload, err := c.startStream(ctx, wire.Request{Op: wire.OpReattach, ExecID: s.execID, Reattach: &s.have})
	if err != nil {
		return err
	}
	at, err := wire.Decode[wire.Reattached](payload)
	if err != nil {
		k.end()
		return classify(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.Closed {
		at.Input, at.Ends = s.sent, s.ends
	}
	// The input of a Write that waits may be added to what is kept.
	missing, most := s.sent-at.Input, int64(min(len(s.kept), sentKept-wire.MaxData))
	if missing < 0 || missing > most || at.Ends < 0 || s.closed {
		k.end()
		return api.Errorf(api.CodeUnavailable, "the input of exec %s can't be continued at offset %d", s.execID, at.Input)
	}
	if s.in != nil {
		s.in.end()
	}
	s.in = k
	if s.sent == at.Input && s.ends <= at.Ends {
		s.out = k
		s.change()
		return nil
	}
	go s.sendAgain(k, at) // it ends with the stream at the latest
	return nil
}

// sendAgain sends on k what the program was not given, and has the next input go there.
func (s *Stream) sendAgain(k *call, at wire.Reattached) {
	for s.sendMissing(k, &at) {
	}
}

// sendMissing sends some of the input that follows at. It reports whether there may be more.
func (s *Stream) sendMissing(k *call, at *wire.Reattached) (more bool) {
	s.mu.Lock()
	if s.in != k || s.closed {
		s.mu.Unlock()
		return false
	}
	first := s.sent - int64(len(s.kept))
	part := bytes.Clone(s.kept[at.Input-first:])
	ends := s.ends - at.Ends
	if len(part) == 0 && ends <= 0 {
		s.out = k
		s.change()
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	if len(part) > 0 {
		at.Input += int64(len(part))
		return k.Bytes(wire.KindInput, part) == nil
	}
	at.Ends++
	return k.End() == nil
}

// change wakes what waits for a Reattach or the end. The caller holds s.mu.
func (s *Stream) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// send does something on the call of the stream. If its connection was closed because memory is saved, it waits for a
// Reattach, which has sent the input that note has put on record, and does the rest again unless that is input.
func (s *Stream) send(note func(), do func(*call) error) error {
	for {
		s.mu.Lock()
		k, changed := s.out, s.changed
		if note != nil {
			note()
		}
		s.mu.Unlock()
		err := do(k)
		if err == nil {
			return nil
		}
		if err = k.fail(err); !errors.Is(err, ErrSaving) {
			return err
		}
		select {
		case <-changed:
		case <-k.ctx.Done():
			return err
		}
		if s.isClosed() {
			return err
		}
		if note != nil {
			return nil
		}
	}
}

func (s *Stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Recv waits for the next event. After Exit it returns io.EOF.
func (s *Stream) Recv() (Event, error) {
	if s.over {
		return Event{}, io.EOF
	}
	s.mu.Lock()
	k := s.in
	s.mu.Unlock()
	kind, payload, err := k.next()
	if err != nil {
		return Event{}, err
	}
	ev, got := Event{Stream: api.Stdout}, &s.have.Stdout
	switch kind {
	case wire.KindStderr:
		ev.Stream, got = api.Stderr, &s.have.Stderr
		fallthrough
	case wire.KindStdout:
		if ev.Seq, ev.Data, err = wire.CutSeq(payload); err != nil {
			return Event{}, classify(err)
		}
		*got += int64(len(ev.Data))
		s.have.Events++
		return ev, nil
	case wire.KindExit:
		res, err := wire.Decode[api.Result](payload)
		if err != nil {
			return Event{}, classify(err)
		}
		res.Stdout, res.Stderr, res.Chunks = nil, nil, nil
		res = sane(res, s.execID)
		k.end()
		s.over = true
		return Event{Exit: &res}, nil
	default:
		return Event{}, unexpected(kind)
	}
}

// Write sends input. It waits while the program does not read.
func (s *Stream) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(n+wire.MaxData, len(p))]
		err := s.send(func() { s.keep(part) }, func(k *call) error {
			k.nudge()
			return k.Bytes(wire.KindInput, part)
		})
		if err != nil {
			return n, fmt.Errorf("send input: %w", err)
		}
		n += len(part)
	}
	return len(p), nil
}

// keep remembers input that is being sent. The caller holds s.mu.
func (s *Stream) keep(p []byte) {
	s.sent += int64(len(p))
	s.kept = append(s.kept, p...)
	if over := len(s.kept) - sentKept; over >= sentKept {
		s.kept = append(s.kept[:0], s.kept[over:]...)
	}
}

// CloseWrite ends the program's input; a terminal gets an end-of-file character.
func (s *Stream) CloseWrite() error {
	err := s.send(func() { s.ends++ }, (*call).End)
	if err != nil {
		return fmt.Errorf("end input: %w", err)
	}
	return nil
}

// Resize changes the size of the terminal.
func (s *Stream) Resize(rows, cols uint16) error {
	err := s.send(nil, func(k *call) error { return k.JSON(wire.KindResize, api.Size{Rows: rows, Cols: cols}) })
	if err != nil {
		return fmt.Errorf("send resize: %w", err)
	}
	return nil
}

// Signal sends a signal to the program's process group.
func (s *Stream) Signal(number int) error {
	err := s.send(nil, func(k *call) error { return k.JSON(wire.KindSignal, wire.Signal{Number: number}) })
	if err != nil {
		return fmt.Errorf("send signal: %w", err)
	}
	return nil
}

// Close detaches: the program goes on, and its output into its log.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.change()
	}
	s.in.end()
	return nil
}

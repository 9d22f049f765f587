package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// errTooMuch: the agent sent more than it was asked for.
var errTooMuch = fmt.Errorf("%w: more bytes than asked for", wire.ErrFrame)

// Stream is a streamed exec. Recv is for one goroutine; the other methods are
// safe for concurrent use with it and each other, except Write with itself.
type Stream struct {
	k      *call
	execID string
	over   bool // for Recv only
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
	k, err := c.openIdle(ctx, wire.Request{Op: wire.OpStream, Exec: x})
	if err != nil {
		return nil, err
	}
	kind, _, err := k.next()
	if err == nil && kind != wire.KindStarted {
		err = unexpected(kind)
	}
	if err != nil {
		k.end()
		return nil, err
	}
	return &Stream{k: k, execID: s.ExecID}, nil
}

// Recv waits for the next event. After Exit it returns io.EOF.
func (s *Stream) Recv() (Event, error) {
	if s.over {
		return Event{}, io.EOF
	}
	kind, payload, err := s.k.next()
	if err != nil {
		return Event{}, err
	}
	ev := Event{Stream: api.Stdout}
	switch kind {
	case wire.KindStderr:
		ev.Stream = api.Stderr
		fallthrough
	case wire.KindStdout:
		if ev.Seq, ev.Data, err = wire.CutSeq(payload); err != nil {
			return Event{}, classify(err)
		}
		return ev, nil
	case wire.KindExit:
		res, err := wire.Decode[api.Result](payload)
		if err != nil {
			return Event{}, classify(err)
		}
		res.Stdout, res.Stderr, res.Chunks = nil, nil, nil
		res = sane(res, s.execID)
		s.k.end()
		s.over = true
		return Event{Exit: &res}, nil
	default:
		return Event{}, unexpected(kind)
	}
}

// Write sends input. It waits while the program does not read.
func (s *Stream) Write(p []byte) (int, error) {
	s.k.nudge()
	if err := s.k.Bytes(wire.KindInput, p); err != nil {
		return 0, s.k.fail(fmt.Errorf("send input: %w", err))
	}
	return len(p), nil
}

// CloseWrite ends the program's input; a terminal gets an end-of-file character.
func (s *Stream) CloseWrite() error {
	if err := s.k.End(); err != nil {
		return s.k.fail(fmt.Errorf("end input: %w", err))
	}
	return nil
}

// Resize changes the size of the terminal.
func (s *Stream) Resize(rows, cols uint16) error {
	if err := s.k.JSON(wire.KindResize, api.Size{Rows: rows, Cols: cols}); err != nil {
		return s.k.fail(fmt.Errorf("send resize: %w", err))
	}
	return nil
}

// Signal sends a signal to the program's process group.
func (s *Stream) Signal(number int) error {
	if err := s.k.JSON(wire.KindSignal, wire.Signal{Number: number}); err != nil {
		return s.k.fail(fmt.Errorf("send signal: %w", err))
	}
	return nil
}

// Close detaches: the program goes on, and its output into its log.
func (s *Stream) Close() error {
	s.k.end()
	return nil
}

package httpapi

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/coder/websocket"
)

func (s *Server) execStream(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(sk *socket, first api.ClientMessage) error {
		if err := asks(first, "exec", first.Exec != nil); err != nil {
			return err
		}
		return s.converse(sk, func() (Stream, error) {
			return s.core.ExecStream(sk.ctx, r.caller, r.ref(), *first.Exec)
		})
	})
}

func (s *Server) runStream(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(sk *socket, first api.ClientMessage) error {
		if err := asks(first, "run", first.Run != nil); err != nil {
			return err
		}
		return s.converse(sk, func() (Stream, error) {
			sb, st, err := s.core.RunStream(core.WithPullProgress(sk.ctx, sk.pull), r.caller, *first.Run, sk.step)
			if err != nil {
				return nil, err
			}
			_ = sk.send(sk.ctx, api.ServerMessage{Sandbox: &sb})
			return st, nil
		})
	})
}

// converse opens the stream and carries it to its end. The Stream is closed when
// it returns: that detaches from an exec and tears a run down.
func (s *Server) converse(sk *socket, open func() (Stream, error)) error {
	sk.begin()
	st, err := open()
	if err != nil {
		return err
	}
	leave, err := s.join(sk, st, api.Started{ExecID: st.ExecID()})
	defer leave()
	if err != nil {
		return nil
	}
	return sk.output(st)
}

// output carries the program's output to the client, at the client's pace, and
// its exit last. It numbers the frames itself: what a sandbox counts is not
// trusted.
func (k *socket) output(st Stream) error {
	var seq uint64
	var buf []byte
	for {
		ev, err := st.Recv()
		if k.ctx.Err() != nil {
			return nil // the socket ended first, and what comes now came of that
		}
		if errors.Is(err, io.EOF) {
			return api.Errorf(api.CodeInternal, "the stream ended without an exit")
		}
		if err != nil {
			return err
		}
		if ev.Exit != nil {
			k.ended = k.send(k.ctx, api.ServerMessage{Exit: ev.Exit}) == nil
			return nil
		}
		kind := frameKind(ev.Stream)
		for data := ev.Data; len(data) > 0; seq++ {
			n := min(len(data), maxOutputFrame)
			buf = binary.BigEndian.AppendUint64(append(buf[:0], kind), seq)
			buf = append(buf, data[:n]...)
			data = data[n:]
			if err := k.put(k.ctx, websocket.MessageBinary, buf, false); err != nil {
				return nil
			}
		}
	}
}

func frameKind(s api.Stream) byte {
	if s == api.Stderr {
		return api.FrameStderr
	}
	return api.FrameStdout
}

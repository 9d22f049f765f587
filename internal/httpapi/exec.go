package httpapi

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/internal/core"

	"github.com/cloche-dev/cloche/api"
)

// processes serves the routes of programs in sandboxes: execs, managed processes, their output and ports.
type processes struct{ *Server }

func (s processes) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes/{ref}/exec", "exec", paceWait, s.exec},
		{http.MethodGet, "/v1/sandboxes/{ref}/exec/stream", "exec", paceWait, s.execStream},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes", "start_process", paceCall, s.startProcess},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes", "processes", paceCall, s.processes},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}", "processes", paceCall, s.getProcess},
		{http.MethodDelete, "/v1/sandboxes/{ref}/processes/{id}", "remove_process", paceChange, s.removeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/wait", "wait_process", paceWait, s.waitProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/signal", "signal_process", paceCall, s.signalProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/resize", "resize_process", paceCall, s.resizeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/stdin", "write_stdin", paceWait, s.writeStdin},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}/attach", "attach", paceWait, s.attach},
		{http.MethodPost, "/v1/sandboxes/{ref}/contexts", "start_process", paceWork, s.createContext},
		{http.MethodGet, "/v1/sandboxes/{ref}/contexts", "processes", paceCall, s.contexts},
		{http.MethodPost, "/v1/sandboxes/{ref}/contexts/{context}/restart", "signal_process", paceWork, s.restartContext},
		{http.MethodDelete, "/v1/sandboxes/{ref}/contexts/{context}", "remove_process", paceChange, s.removeContext},
		{http.MethodPost, "/v1/sandboxes/{ref}/code", "exec", paceWait, s.runCode},
		{http.MethodGet, "/v1/sandboxes/{ref}/ports/{port}", "dial_port", paceWait, s.port},
		{http.MethodGet, "/v1/sandboxes/{ref}/ports", "list_ports", paceCall, s.openPorts},
		{http.MethodPost, "/v1/sandboxes/{ref}/ports", "open_port", paceCall, s.openPort},
		{http.MethodDelete, "/v1/sandboxes/{ref}/ports/{port}", "close_port", paceCall, s.closePort},
		{http.MethodGet, "/v1/sandboxes/{ref}/logs", "logs", paceWait, s.logs},
		{http.MethodPost, "/v1/run", "run", paceWait, s.run},
		{http.MethodGet, "/v1/run/stream", "run", paceWait, s.runStream},
	}
}

func (s processes) exec(w http.ResponseWriter, r request) error {
	var req api.ExecRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if err := collected(req, ""); err != nil {
		return err
	}
	if err := r.execIDOf(&req.ExecID); err != nil {
		return err
	}
	res, err := s.core.Exec(r.Context(), r.caller, r.ref(), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, res)
	return nil
}

// run hands core the request's own context: a caller that leaves ends its
// program, and core removes the sandbox whatever ended the run.
func (s processes) run(w http.ResponseWriter, r request) error {
	var req api.RunRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if err := collected(req.Exec, "exec."); err != nil {
		return err
	}
	if err := r.keyOf(&req.Spec.IdempotencyKey); err != nil {
		return err
	}
	res, err := s.core.Run(r.Context(), r.caller, req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, res)
	return nil
}

// collected refuses what only a stream has.
func collected(req api.ExecRequest, at string) error {
	if req.TTY {
		return api.Invalid(at+"tty", "a collected exec has no terminal").WithHint("use the WebSocket beside this path, which ends in /stream")
	}
	return nil
}

func (s processes) execStream(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(sk *socket, first api.ClientMessage) error {
		if err := asks(first, "exec", first.Exec != nil); err != nil {
			return err
		}
		return s.converse(sk, func() (Stream, error) {
			return s.core.ExecStream(sk.ctx, r.caller, r.ref(), *first.Exec)
		})
	})
}

func (s processes) runStream(w http.ResponseWriter, r request) error {
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
func (s processes) converse(sk *socket, open func() (Stream, error)) error {
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

package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche"
)

func (s *Server) exec(w http.ResponseWriter, r request) error {
	var req cloche.ExecRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if err := collected(req, ""); err != nil {
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
func (s *Server) run(w http.ResponseWriter, r request) error {
	var req cloche.RunRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if err := collected(req.Exec, "exec."); err != nil {
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
func collected(req cloche.ExecRequest, at string) error {
	if req.TTY {
		return cloche.Invalid(at+"tty", "a collected exec has no terminal").WithHint("use the WebSocket beside this path, which ends in /stream")
	}
	return nil
}

func (s *Server) processes(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Processes(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Processes []cloche.Process `json:"processes"`
	}{nonNil(l)})
	return nil
}

func (s *Server) logs(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := cloche.LogOptions{
		ExecID: q.str("exec_id"), Stream: cloche.Stream(q.str("stream")),
		Tail: int(q.integer("tail", 0, 0, 1<<31-1)),
	}
	if o.Stream != "" && o.Stream != cloche.Stdout && o.Stream != cloche.Stderr {
		q.fail("stream", "there are no logs of stream %q", clip(string(o.Stream), 40)).WithHint("want stdout or stderr")
	}
	if err := q.end(); err != nil {
		return err
	}
	lines := newLineWriter(w, http.StatusOK)
	defer lines.close()
	if err := s.core.Logs(r.Context(), r.caller, r.ref(), o, func(e cloche.LogEntry) error { return lines.write(e) }); err != nil {
		return lines.fail(err, r)
	}
	return lines.begin()
}

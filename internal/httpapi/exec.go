package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) exec(w http.ResponseWriter, r request) error {
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
func (s *Server) run(w http.ResponseWriter, r request) error {
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

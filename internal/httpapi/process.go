package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) startProcess(w http.ResponseWriter, r request) error {
	var spec api.ProcessSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	if err := r.execIDOf(&spec.ExecID); err != nil {
		return err
	}
	p, err := s.core.StartProcess(r.Context(), r.caller, r.ref(), spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, p)
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
	writeJSON(w, http.StatusOK, api.ProcessList{Processes: nonNil(l)})
	return nil
}

func (s *Server) getProcess(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	p, err := s.core.GetProcess(r.Context(), r.caller, r.ref(), r.process())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, p)
	return nil
}

func (s *Server) removeProcess(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	// It goes on when its caller leaves, as every end does.
	if err := s.core.RemoveProcess(context.WithoutCancel(r.Context()), r.caller, r.ref(), r.process()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) waitProcess(w http.ResponseWriter, r request) error {
	var wait api.WaitRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &wait); err != nil {
		return err
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	p, err := s.core.WaitProcess(ctx, r.caller, r.ref(), r.process(), wait)
	if err != nil {
		return cut(ctx, err)
	}
	writeJSON(w, http.StatusOK, p)
	return nil
}

func (s *Server) signalProcess(w http.ResponseWriter, r request) error {
	var sig api.SignalRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &sig); err != nil {
		return err
	}
	if err := s.core.SignalProcess(r.Context(), r.caller, r.ref(), r.process(), sig); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) resizeProcess(w http.ResponseWriter, r request) error {
	var size api.Size
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &size); err != nil {
		return err
	}
	if err := s.core.ResizeProcess(r.Context(), r.caller, r.ref(), r.process(), size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

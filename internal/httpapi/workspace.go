package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) createWorkspace(w http.ResponseWriter, r request) error {
	var spec api.WorkspaceSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	info, err := s.core.CreateWorkspace(r.Context(), r.caller, spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, info)
	return nil
}

func (s *Server) workspaces(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Workspaces(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Workspaces = nonNil(l.Workspaces)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) getWorkspace(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	tenant := q.str("tenant")
	if err := q.end(); err != nil {
		return err
	}
	info, err := s.core.GetWorkspace(r.Context(), r.caller, tenant, r.PathValue("name"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s *Server) removeWorkspace(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	tenant := q.str("tenant")
	if err := q.end(); err != nil {
		return err
	}
	// It goes on when its caller leaves, as every end does.
	if err := s.core.RemoveWorkspace(context.WithoutCancel(r.Context()), r.caller, tenant, r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

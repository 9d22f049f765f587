package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) createKey(w http.ResponseWriter, r request) error {
	var spec api.KeySpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	k, err := s.core.CreateKey(r.Context(), r.caller, spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, k)
	return nil
}

func (s *Server) keys(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Keys(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Keys = nonNil(l.Keys)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) revokeKey(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	// It goes on when its caller leaves, as every end does.
	k, err := s.core.RevokeKey(context.WithoutCancel(r.Context()), r.caller, r.PathValue("key"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, k)
	return nil
}

func (s *Server) explainPolicy(w http.ResponseWriter, r request) error {
	var q api.PolicyQuestion
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &q); err != nil {
		return err
	}
	a, err := s.core.ExplainPolicy(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	a.Steps = nonNil(a.Steps)
	writeJSON(w, http.StatusOK, a)
	return nil
}

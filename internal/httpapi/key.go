package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// keys serves the routes of keys, secrets and questions to the policy.
type keys struct{ *Server }

func (s keys) routes() []route {
	return []route{
		{http.MethodPost, "/v1/keys", "create_key", paceCall, s.createKey},
		{http.MethodGet, "/v1/keys", "list_keys", paceCall, s.keys},
		{http.MethodDelete, "/v1/keys/{key}", "revoke_key", paceCall, s.revokeKey},
		{http.MethodGet, "/v1/secrets", "list_secrets", paceCall, s.secrets},
		{http.MethodPost, "/v1/policy/explain", "explain_policy", paceCall, s.explainPolicy},
	}
}

func (s keys) createKey(w http.ResponseWriter, r request) error {
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

func (s keys) keys(w http.ResponseWriter, r request) error {
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

func (s keys) revokeKey(w http.ResponseWriter, r request) error {
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

func (s keys) explainPolicy(w http.ResponseWriter, r request) error {
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

func (s keys) secrets(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Secrets(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Secrets = nonNil(l.Secrets)
	writeJSON(w, http.StatusOK, l)
	return nil
}

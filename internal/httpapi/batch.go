package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s sandboxes) createMany(w http.ResponseWriter, r request) error {
	var b api.BatchCreate
	if err := s.batchBody(w, r, &b); err != nil {
		return err
	}
	return answerBatch(w, r)(s.core.CreateMany(r.Context(), r.caller, b))
}

func (s sandboxes) statusMany(w http.ResponseWriter, r request) error {
	var sel api.BatchSelect
	if err := s.batchBody(w, r, &sel); err != nil {
		return err
	}
	return answerBatch(w, r)(s.core.StatusMany(r.Context(), r.caller, sel))
}

func (s sandboxes) removeMany(w http.ResponseWriter, r request) error {
	var sel api.BatchSelect
	if err := s.batchBody(w, r, &sel); err != nil {
		return err
	}
	return answerBatch(w, r)(s.core.DeleteMany(context.WithoutCancel(r.Context()), r.caller, sel))
}

func (s sandboxes) batchBody(w http.ResponseWriter, r request, v any) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return s.readJSON(w, r, v)
}

// answerBatch writes what became of a batch. Its errors are told as if each were an
// answer of its own.
func answerBatch(w http.ResponseWriter, r request) func(api.BatchResult, error) error {
	return func(out api.BatchResult, err error) error {
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, wireBatch(out, r))
		return nil
	}
}

// wireBatch is a result as callers get it.
func wireBatch(out api.BatchResult, r request) api.BatchResult {
	out.Succeeded, out.Failed = nonNil(out.Succeeded), nonNil(out.Failed)
	for i := range out.Failed {
		out.Failed[i].Error = toWire(out.Failed[i].Error, r)
	}
	return out
}

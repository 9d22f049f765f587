package e2bapi

import (
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// forkResult is one fork, or why it was not created.
type forkResult struct {
	Sandbox *sandboxAnswer `json:"sandbox,omitempty"`
	Error   *wireError     `json:"error,omitempty"`
}

// fork creates sandboxes that continue from the memory of another, each with tokens and a timeout of its own.
func (s *Server) fork(w http.ResponseWriter, r request) error {
	var req struct {
		Timeout *int64 `json:"timeout"` // seconds
		Count   *int   `json:"count"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	timeout, count := int64(timeoutV2), 1
	if req.Timeout != nil {
		timeout = *req.Timeout
	}
	if req.Count != nil {
		count = *req.Count
	}
	switch {
	case count < 1 || count > api.MaxForks:
		return fail(http.StatusBadRequest, "count is %d: it must be 1 to %d", count, api.MaxForks)
	case timeout <= 0 || timeout > maxTimeout:
		return fail(http.StatusBadRequest, "timeout is %d: it must be 1 to %d seconds", timeout, maxTimeout)
	}
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	if kept.paused(sb) {
		return fail(http.StatusConflict, "sandbox %q is paused", clip(r.PathValue("id")))
	}
	made, err := s.core.Fork(r.Context(), r.caller, sb.ID, api.ForkRequest{Count: count})
	if err != nil {
		return err
	}
	results := []forkResult{}
	for _, fork := range made.Succeeded {
		answer, err := s.keepFork(r, *kept, fork.ID, timeout)
		if err != nil {
			s.discard(r.Context(), r.caller, fork.ID)
			results = append(results, forkResult{Error: new(s.toWire(err))})
			continue
		}
		results = append(results, forkResult{Sandbox: &answer})
	}
	for _, f := range made.Failed {
		results = append(results, forkResult{Error: new(s.toWire(f.Error))})
	}
	writeJSON(w, http.StatusCreated, results)
	return nil
}

// keepFork keeps the record of a fork, for a time in seconds. It is the parent's with other tokens.
func (s *Server) keepFork(r request, kept record, id string, seconds int64) (sandboxAnswer, error) {
	kept.Sandbox, kept.Caller, kept.Token, kept.Started, kept.Timeout = id, r.callerID, newToken(), time.Now().UTC(), seconds
	if kept.TrafficToken != "" {
		kept.TrafficToken = newToken()
	}
	kept.setEnd(seconds)
	var err error
	if kept.AutoPause {
		err = s.keep(r.Context(), r.caller, id, seconds)
	} else {
		_, err = s.core.Extend(r.Context(), r.caller, id, api.Extension{LifetimeMS: seconds * 1000, Exact: true})
	}
	if err == nil {
		err = s.records.put(kept)
	}
	return s.answerOf(&kept), err
}

package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

func (s *Server) heartbeat(w http.ResponseWriter, r request) error {
	return s.act(r.Context(), w, r, s.core.Heartbeat)
}

func (s *Server) extend(w http.ResponseWriter, r request) error {
	var x api.Extension
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &x); err != nil {
		return err
	}
	return answer(w)(s.core.Extend(r.Context(), r.caller, r.ref(), x))
}

// A pause or a resume continues when its caller disconnects, because a partial one is useless.

func (s *Server) pause(w http.ResponseWriter, r request) error {
	return s.act(context.WithoutCancel(r.Context()), w, r, s.core.Pause)
}

func (s *Server) resume(w http.ResponseWriter, r request) error {
	return s.act(context.WithoutCancel(r.Context()), w, r, s.core.Resume)
}

// act serves an operation whose only argument is its sandbox.
func (s *Server) act(ctx context.Context, w http.ResponseWriter, r request, verb func(context.Context, core.Caller, string) (api.Sandbox, error)) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &struct{}{}); err != nil {
		return err
	}
	return answer(w)(verb(ctx, r.caller, r.ref()))
}

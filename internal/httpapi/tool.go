package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// tool serves a file tool, whose request and answer are both JSON.
func tool[In, Out any](s *Server, do func(ctx context.Context, caller core.Caller, ref string, in In) (Out, error)) handler {
	return func(w http.ResponseWriter, r request) error {
		var in In
		if err := queryOf(r).end(); err != nil {
			return err
		}
		if err := s.readJSON(w, r, &in); err != nil {
			return err
		}
		out, err := do(r.Context(), r.caller, r.ref(), in)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	}
}

// glob and grep answer with lists, which are never null.
func (s *Server) glob(ctx context.Context, caller core.Caller, ref string, g api.ToolGlob) (api.ToolFiles, error) {
	l, err := s.core.Glob(ctx, caller, ref, g)
	l.Files = nonNil(l.Files)
	return l, err
}

func (s *Server) grep(ctx context.Context, caller core.Caller, ref string, g api.ToolGrep) (api.ToolLines, error) {
	l, err := s.core.Grep(ctx, caller, ref, g)
	l.Matches = nonNil(l.Matches)
	return l, err
}

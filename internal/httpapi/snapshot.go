package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) diff(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.DiffOptions{
		Scope: api.DiffScope(q.oneOf("scope", string(api.DiffWorkspace), string(api.DiffRoot))),
		Limit: int(q.integer("limit", 0, 0, 10_000)), Cursor: q.str("cursor"),
	}
	if err := q.end(); err != nil {
		return err
	}
	d, err := s.core.Diff(r.Context(), r.caller, r.ref(), o)
	return sendDiff(w, d, err)
}

func (s *Server) commitWorkspace(w http.ResponseWriter, r request) error {
	if err := s.noBody(w, r); err != nil {
		return err
	}
	d, err := s.core.CommitWorkspace(r.Context(), r.caller, r.ref())
	return sendDiff(w, d, err)
}

func (s *Server) rollbackWorkspace(w http.ResponseWriter, r request) error {
	if err := s.noBody(w, r); err != nil {
		return err
	}
	d, err := s.core.RollbackWorkspace(r.Context(), r.caller, r.ref())
	return sendDiff(w, d, err)
}

// noBody is for a request that has only a path.
func (s *Server) noBody(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return s.readOptionalJSON(w, r, &struct{}{})
}

func sendDiff(w http.ResponseWriter, d api.Diff, err error) error {
	if err != nil {
		return err
	}
	d.Changes = nonNil(d.Changes)
	writeJSON(w, http.StatusOK, d)
	return nil
}

func (s *Server) createSnapshot(w http.ResponseWriter, r request) error {
	var req api.SnapshotRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &req); err != nil {
		return err
	}
	snap, err := s.core.CreateSnapshot(r.Context(), r.caller, r.ref(), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, snap)
	return nil
}

func (s *Server) snapshots(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Snapshots(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Snapshots = nonNil(l.Snapshots)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) getSnapshot(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	snap, err := s.core.GetSnapshot(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, snap)
	return nil
}

func (s *Server) removeSnapshot(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.core.RemoveSnapshot(r.Context(), r.caller, r.ref()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// storage serves the routes of workspaces and snapshots.
type storage struct{ *Server }

func (s storage) routes() []route {
	return []route{
		{http.MethodPost, "/v1/workspaces", "create_workspace", paceWork, s.createWorkspace},
		{http.MethodGet, "/v1/workspaces", "list_workspaces", paceCall, s.workspaces},
		{http.MethodGet, "/v1/workspaces/{name}", "get_workspace", paceCall, s.getWorkspace},
		{http.MethodDelete, "/v1/workspaces/{name}", "remove_workspace", paceWork, s.removeWorkspace},
		{http.MethodGet, "/v1/sandboxes/{ref}/diff", "diff", paceWork, s.diff},
		{http.MethodPost, "/v1/sandboxes/{ref}/commit", "commit_workspace", paceWork, s.commitWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/rollback", "rollback_workspace", paceWork, s.rollbackWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/snapshots", "create_snapshot", paceWork, s.createSnapshot},
		{http.MethodGet, "/v1/snapshots", "list_snapshots", paceCall, s.snapshots},
		{http.MethodGet, "/v1/snapshots/{ref}", "get_snapshot", paceCall, s.getSnapshot},
		{http.MethodDelete, "/v1/snapshots/{ref}", "remove_snapshot", paceWork, s.removeSnapshot},
	}
}

func (s storage) diff(w http.ResponseWriter, r request) error {
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

func (s storage) commitWorkspace(w http.ResponseWriter, r request) error {
	if err := s.emptyBody(w, r); err != nil {
		return err
	}
	d, err := s.core.CommitWorkspace(r.Context(), r.caller, r.ref())
	return sendDiff(w, d, err)
}

func (s storage) rollbackWorkspace(w http.ResponseWriter, r request) error {
	if err := s.emptyBody(w, r); err != nil {
		return err
	}
	d, err := s.core.RollbackWorkspace(r.Context(), r.caller, r.ref())
	return sendDiff(w, d, err)
}

// emptyBody is for a request that has only a path.
func (s *Server) emptyBody(w http.ResponseWriter, r request) error {
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

func (s storage) createSnapshot(w http.ResponseWriter, r request) error {
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

func (s storage) snapshots(w http.ResponseWriter, r request) error {
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

func (s storage) getSnapshot(w http.ResponseWriter, r request) error {
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

func (s storage) removeSnapshot(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.core.RemoveSnapshot(r.Context(), r.caller, r.ref()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s storage) createWorkspace(w http.ResponseWriter, r request) error {
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

func (s storage) workspaces(w http.ResponseWriter, r request) error {
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

func (s storage) getWorkspace(w http.ResponseWriter, r request) error {
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

func (s storage) removeWorkspace(w http.ResponseWriter, r request) error {
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

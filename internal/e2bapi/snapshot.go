package e2bapi

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// snapshotInfo is a snapshot as E2B's clients know it: a template.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func infoOf(snap api.Snapshot) snapshotInfo {
	out := snapshotInfo{SnapshotID: snap.ID, Names: []string{}}
	if snap.Name != snap.ID {
		out.Names = append(out.Names, snap.Name)
	}
	return out
}

// createSnapshot makes a snapshot of a sandbox, with its memory unless the request asks for the files alone.
func (s *Server) createSnapshot(w http.ResponseWriter, r request) error {
	var req struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	_, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	scope := api.SnapshotMemory
	if req.Memory != nil && !*req.Memory {
		scope = api.SnapshotFiles
	}
	snap, err := s.core.CreateSnapshot(r.Context(), r.caller, sb.ID, api.SnapshotRequest{Name: withoutTag(req.Name), Scope: scope})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, infoOf(snap))
	return nil
}

// withoutTag returns the name of a snapshot without the tag of a build, which snapshots here do not have.
func withoutTag(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return name
}

// snapshots lists snapshots, newest first.
func (s *Server) snapshots(w http.ResponseWriter, r request) error {
	list, err := s.core.Snapshots(r.Context(), r.caller)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	ref, _ := refOf(q.Get("sandboxID"))
	out, after := []snapshotInfo{}, q.Get("nextToken")
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), strconv.Itoa(maxPage)))
	if err != nil || limit < 1 || limit > maxPage {
		return fail(http.StatusBadRequest, "limit is %q: it can be 1 to %d", clip(q.Get("limit")), maxPage)
	}
	for _, snap := range list.Snapshots {
		switch {
		case q.Get("sandboxID") != "" && snap.Sandbox != ref, q.Get("name") != "" && snap.Name != withoutTag(q.Get("name")):
		case after != "":
			if snap.ID == after {
				after = ""
			}
		case len(out) == limit:
			w.Header().Set("X-Next-Token", out[limit-1].SnapshotID)
			writeJSON(w, http.StatusOK, out)
			return nil
		default:
			out = append(out, infoOf(snap))
		}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// removeTemplate removes a template that the caller has built, or a snapshot. Other images are the operator's.
func (s *Server) removeTemplate(w http.ResponseWriter, r request) error {
	if done, err := s.removeBuilt(r, r.PathValue("id")); done || err != nil {
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return err
	}
	id := withoutTag(r.PathValue("id"))
	if err := s.core.RemoveSnapshot(r.Context(), r.caller, id); err != nil {
		if api.CodeOf(err) == api.CodeNotFound {
			return fail(http.StatusNotFound, "snapshot '%s' not found", clip(id))
		}
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// source is what a sandbox of a template starts from: an image, or a snapshot.
type source struct {
	image, snapshot string
	// memory: the snapshot has the memory of a sandbox, which the new one continues from.
	memory bool
	// user is the default user, or empty for the image's.
	user string
}

// sourceOf finds the source of a template.
func (s *Server) sourceOf(r request, template string) (source, error) {
	image, err := s.imageOf(r, template)
	if f, ok := err.(*failure); ok && f.status == http.StatusNotFound { //nolint:errorlint // imageOf wraps nothing
		if snap, serr := s.core.GetSnapshot(r.Context(), r.caller, withoutTag(template)); serr == nil {
			return source{snapshot: snap.ID, memory: snap.Scope == api.SnapshotMemory, user: userOf(snap.Image)}, nil
		}
	}
	return source{image: image, user: userOf(image)}, err
}

// userOf is the default user of E2B's sandboxes with an image.
func userOf(image string) string {
	if image == api.DefaultImage {
		return defaultUser
	}
	return ""
}

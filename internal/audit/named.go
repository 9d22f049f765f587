package audit

import (
	"context"
	"errors"
	"io"

	"github.com/cloche-dev/cloche/api"
)

// The verbs whose records tell which name a sandbox has.
const (
	verbCreate = "create"
	verbRun    = "run"
)

// sandboxes are those that one reference means: an id, or a name that several had one after
// the other. It learns from the records that it is shown, which are in order.
type sandboxes struct {
	ref string
	ids map[string]bool
}

// match reports whether a record is of one of them, or of a creation under that name.
func (s *sandboxes) match(r api.AuditRecord) bool {
	if r.Details["name"] == s.ref && (r.Verb == verbCreate || r.Verb == verbRun) {
		if r.Sandbox != "" {
			s.ids[r.Sandbox] = true
		}
		return true
	}
	return r.Sandbox != "" && (r.Sandbox == s.ref || s.ids[r.Sandbox])
}

// sandboxes reads the log for what a reference means to a reader. It returns an error of the
// code not_found where no record that the reader sees is of such a sandbox.
func (l *Log) sandboxes(ctx context.Context, ref string, sees func(api.AuditRecord) bool) (*sandboxes, error) {
	s := &sandboxes{ref: ref, ids: map[string]bool{}}
	w := &walker{home: l.opts.Home}
	defer w.close()
	for found := false; ; {
		r, _, err := w.next(ctx)
		switch {
		case errors.Is(err, io.EOF) && !found:
			return nil, api.Errorf(api.CodeNotFound, "the audit log has no record of sandbox %.256q", ref).
				WithHint("give the id or the name of a sandbox; what a retention rule has removed is in no record")
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return nil, err
		}
		if (sees == nil || sees(r)) && s.match(r) {
			found = true
		}
	}
}

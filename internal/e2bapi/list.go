package e2bapi

import (
	"cmp"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxPage is the largest page of a list.
const maxPage = 100

// filter is the query of a list.
type filter struct {
	metadata map[string]string
	states   []string
	template string
	after    time.Time
	oldest   bool // the order is ascending
	limit    int
	cursor   *cursor
}

// cursor is the last sandbox of the page before.
type cursor struct {
	started time.Time
	id      string
}

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.started.Format(time.RFC3339Nano) + "__" + c.id))
}

func parseCursor(text string) (*cursor, error) {
	invalid := fail(http.StatusBadRequest, "Invalid next token")
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, invalid
	}
	at, id, ok := strings.Cut(string(data), "__")
	started, err := time.Parse(time.RFC3339Nano, at)
	if !ok || err != nil || id == "" {
		return nil, invalid
	}
	return &cursor{started, id}, nil
}

// parseMetadata decodes the filter for metadata: a form whose keys and values are escaped once more.
func parseMetadata(text string) (map[string]string, error) {
	invalid := fail(http.StatusBadRequest, "the metadata filter is malformed")
	form, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid
	}
	out := map[string]string{}
	for k, values := range form {
		key, err := url.QueryUnescape(k)
		if err != nil {
			return nil, invalid
		}
		if out[key], err = url.QueryUnescape(values[0]); err != nil {
			return nil, invalid
		}
	}
	return out, nil
}

func parseFilter(q url.Values) (filter, error) {
	f := filter{limit: maxPage, template: q.Get("template"), oldest: q.Get("order") == "asc"}
	var err error
	if f.metadata, err = parseMetadata(q.Get("metadata")); err != nil {
		return f, err
	}
	if text := q.Get("state"); text != "" {
		f.states = strings.Split(text, ",")
	}
	if strings.Contains(f.template, ":") {
		return f, fail(http.StatusBadRequest, "the filter for a template takes no tag")
	}
	if text := q.Get("startedAfter"); text != "" {
		if f.after, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return f, fail(http.StatusBadRequest, "startedAfter is not a time as in RFC 3339")
		}
	}
	if text := q.Get("limit"); text != "" {
		if f.limit, err = strconv.Atoi(text); err != nil || f.limit < 1 || f.limit > maxPage {
			return f, fail(http.StatusBadRequest, "limit must be 1 to %d", maxPage)
		}
	}
	if text := q.Get("nextToken"); text != "" {
		f.cursor, err = parseCursor(text)
	}
	return f, err
}

func (f filter) wants(l listed) bool {
	for k, v := range f.metadata {
		if got, ok := l.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return (len(f.states) == 0 || slices.Contains(f.states, l.State)) &&
		(f.template == "" || f.template == l.TemplateID) &&
		!l.StartedAt.Truncate(time.Microsecond).Before(f.after)
}

// compare orders a list: newest first, unless the oldest is wanted first.
func (f filter) compare(a, b cursor) int {
	n := cmp.Or(a.started.Compare(b.started), cmp.Compare(a.id, b.id))
	if f.oldest {
		return n
	}
	return -n
}

func (l listed) cursor() cursor { return cursor{l.StartedAt, l.SandboxID} }

func (s *Server) list(w http.ResponseWriter, r request) error {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := s.listedFor(r)
	if err != nil {
		return err
	}
	running := 0
	out := []listed{}
	for _, l := range all {
		if l.State == stateRunning {
			running++
		}
		if f.wants(l) && (f.cursor == nil || f.compare(*f.cursor, l.cursor()) < 0) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b listed) int { return f.compare(a.cursor(), b.cursor()) })
	if len(out) > f.limit {
		out = out[:f.limit]
		w.Header().Set("X-Next-Token", out[len(out)-1].cursor().String())
	}
	if len(f.states) == 0 || slices.Contains(f.states, stateRunning) {
		w.Header().Set("X-Total-Running", strconv.Itoa(running))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// listedFor returns the sandboxes of E2B's clients that the caller can see.
func (s *Server) listedFor(r request) ([]listed, error) {
	var out []listed
	for _, kept := range s.records.all() {
		sb, err := s.core.Get(r.Context(), r.caller, kept.Sandbox)
		switch {
		case api.CodeOf(err) == api.CodeNotFound || api.CodeOf(err) == api.CodeDenied:
		case err != nil:
			return nil, err
		case !kept.gone(sb):
			out = append(out, listedOf(kept, sb))
		}
	}
	return out, nil
}

// listV1 answers the older route, which has running sandboxes only and no pages.
func (s *Server) listV1(w http.ResponseWriter, r request) error {
	want, err := parseMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	all, err := s.listedFor(r)
	if err != nil {
		return err
	}
	f := filter{metadata: maps.Clone(want), states: []string{stateRunning}}
	out := slices.DeleteFunc(all, func(l listed) bool { return !f.wants(l) })
	slices.SortFunc(out, func(a, b listed) int { return f.compare(a.cursor(), b.cursor()) })
	if out == nil {
		out = []listed{}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

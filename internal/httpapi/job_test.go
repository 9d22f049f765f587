package httpapi_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestOldPathsOfJobs: each path of jobs is served at its deprecated name too, with the same answer
// except for the name.
func TestOldPathsOfJobs(t *testing.T) {
	h := open(t)
	renamed := strings.NewReplacer(`"program":`, `"job":`, `"programs":`, `"jobs":`)
	served := h.server.Routes()
	calls := []struct{ method, path, accept, body, old string }{
		{"POST", "", "application/json", `{"spec":{},"run":{"commands":[{"shell":"true"}]}}`, `"id":"pg-1"`},
		{"POST", "", "application/x-ndjson", `{"spec":{},"run":{"commands":[{"shell":"true"}]}}`, `{"program":{`},
		{"POST", "?detach=true", "application/json", `{"spec":{},"run":{"commands":[{"shell":"true"}]}}`, `"id":"pg-1"`},
		{"GET", "", "application/json", "", `{"programs":[`},
		{"GET", "/pg-1", "application/json", "", `"id":"pg-1"`},
		{"GET", "/pg-1", "application/x-ndjson", "", `{"program":{`},
		{"GET", "/pg-2", "application/json", "", "not_found"},
		{"POST", "/pg-1/continue", "application/json", `{"handler":"own"}`, `"id":"pg-1"`},
		{"DELETE", "/pg-1", "application/json", "", `"id":"pg-1"`},
	}
	for _, c := range calls {
		ask := func(base string) (int, string) {
			header := http.Header{"Accept": {c.accept}, "X-Request-Id": {"one"}}
			var body []byte
			if c.body != "" {
				header.Set("Content-Type", "application/json")
				body = []byte(c.body)
			}
			resp, data := h.send("unix", h.unix, "localhost", c.method, base+c.path, header, bytes.NewReader(body))
			return resp.StatusCode, string(data)
		}
		status, want := ask("/v1/jobs")
		code, got := ask("/v1/programs")
		if code != status || renamed.Replace(got) != want || !strings.Contains(got, c.old) || strings.Contains(want, `"program`) {
			t.Errorf("%s %s: %d %s; the current path: %d %s", c.method, c.path, code, got, status, want)
		}
		route := strings.ReplaceAll(strings.TrimSuffix(c.method+" /v1/jobs"+c.path, "?detach=true"), "pg-1", "{job}")
		if i := slices.Index(served, strings.ReplaceAll(route, "pg-2", "{job}")); i < 0 {
			t.Errorf("no route is %s", route)
		}
	}
}

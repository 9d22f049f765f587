package endpoint_test

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestBodyFilter: what the provider would do by itself does not reach it, in the way
// that the endpoint says, and is on record.
func TestBodyFilter(t *testing.T) {
	var got atomic.Value
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got.Store(r.Header.Get("Content-Type") + " " + strconv.FormatInt(r.ContentLength, 10) + " " + string(b))
	})
	const search = `{"model":"m","tools":[{"type":"web_search"}]}`
	for _, c := range []struct {
		filter, path, header, body, want string
		reached                          string
		filtered                         []string
	}{
		{"strip", "/v1/responses", "", search, "200", `application/json 13 {"model":"m"}`, []string{"tools[0]"}},
		{"refuse", "/v1/responses", "", search, "403 capability_denied", "", []string{"tools[0]"}},
		{"off", "/v1/responses", "", search, "200", "application/json 45 " + search, nil},
		{"", "/v1/responses", "", search, "200", "application/json 45 " + search, nil},
		{"strip", "/v1/chat/completions", "", `{ "model": "m" }`, "200", `application/json 16 { "model": "m" }`, nil},
		{"strip", "/v1/files", "", `{}`, "403 capability_denied", "", nil},
		{"strip", "/v1/messages", "", "{\xff}", "400 body_unreadable", "", nil},
		{"strip", "/v1/messages", "Content-Encoding: gzip", `{}`, "400 body_unreadable", "", nil},
		{"strip", "/v1/messages", "Content-Type: application/json; charset=utf-7", `{}`, "200", `application/json 2 {}`, nil},
		{"strip", "/v1/completions", "", `{"model":"x:online"}`, "403 capability_denied", "", []string{"model"}},
		{"strip", "/vf/tools/x", "", "{\xff}", "200", "application/json 3 {\xff}", nil},
		{"strip", "/v1/responses", "", `{"a":"` + strings.Repeat("x", 17<<20) + `"}`, "413 body_too_large", "", nil},
	} {
		in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{BodyFilter: c.filter}}, nil)
		got.Store("")
		req, _ := http.NewRequest("POST", in.base+c.path, io.MultiReader(strings.NewReader(c.body))) // its length is not said
		req.Header.Set("Content-Type", "application/json")
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			req.Header.Set(name, value)
		}
		if c.reached != "" && c.filter != "strip" || c.path == "/vf/tools/x" {
			req.ContentLength = int64(len(c.body))
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", c.filter, c.path, err)
			continue
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		status := strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error"))
		if status != c.want || got.Load() != c.reached {
			t.Errorf("%s %s %.60q: %s, reached %q", c.filter, c.path, c.body, status, got.Load())
		}
		until(t, func() bool { return in.Status().Counters.Active == 0 })
		if x := in.last(t); !slices.Equal(x.Filtered, c.filtered) {
			t.Errorf("%s %s %.60q: on record %+v", c.filter, c.path, c.body, x)
		}
	}
}

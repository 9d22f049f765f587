package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// FuzzDecodeJSON: what is taken is UTF-8, survives a round trip, and nothing
// else than a typed error comes of the rest.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"exec":{"argv":["a","b"],"stdin":{"base64":"/w=="},"timeout_ms":null}}`, `{"run":{"spec":{"limits":{"pids":1}},"exec":{}}}`,
		`{"signal":"TERM"}`, `{"resize":{"rows":1,"cols":2}}`, `{"exec":{"env":{"A":"b"}}}`, `{"exec":[1,2]}`, `[{`, `{"a":{"a":{"a":{}}}}`, "{\"signal\":\"\xff\"}",
		`{"exec":{"stdin":{"base64":"=","x":1}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m api.ClientMessage
		if err := httpapi.DecodeJSON(data, &m); err != nil {
			if code := api.CodeOf(err); code != api.CodeInvalid {
				t.Fatalf("code %s: %v", code, err)
			}
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var m2 api.ClientMessage
		if err := httpapi.DecodeJSON(again, &m2); err != nil {
			t.Fatalf("what was taken is refused the second time: %v: %s", err, again)
		}
		third, err := json.Marshal(m2)
		if err != nil || string(third) != string(again) {
			t.Fatalf("%s became %s (%v)", again, third, err)
		}
	})
}

// FuzzRequest: no request line, header or body makes the server panic or answer
// with anything but a success or a typed error.
func FuzzRequest(f *testing.F) {
	c := mockcore.New()
	s, err := httpapi.New(httpapi.Options{Core: c, MaxBody: 4096})
	if err != nil {
		f.Fatal(err)
	}
	known := core.Caller{Tenant: "t", UID: -1}
	if _, err := c.Create(context.Background(), known, api.SandboxSpec{Name: "box"}, nil); err != nil {
		f.Fatal(err)
	}
	f.Add("GET", "/v1/sandboxes/box/files", "path=/a%ff&offset=1&length=2", "", "")
	f.Add("GET", "/v1/sandboxes", "label=a=b&label=a=c&state=running&limit=7&cursor=x", "", "")
	f.Add("PUT", "/v1/sandboxes/box/files", "path=/workspace/x&mode=0644", "application/octet-stream", "data")
	f.Add("PUT", "/v1/sandboxes/box/tar", "path=/t", "application/x-tar", "not a tar")
	f.Add("POST", "/v1/sandboxes/box/files/move", "path=/a&to=%00", "", "")
	f.Add("POST", "/v1/sandboxes", "", "application/json", `{"name":"x"}`)
	f.Add("GET", "/v1/sandboxes/box/exec/stream", "", "", "")
	f.Add("GET", "/v1/../v1//status", ";", "", "")
	f.Add("GET", "/v1/events", "kind=refused&after=-9&sandbox=box", "", "")
	f.Add("GET", "/v1/sandboxes/box/logs", "since=-1&since_time=1e3&follow=true&wait_ms=1", "", "")
	f.Add("POST", "/v1/sandboxes/box/processes", "", "application/json", `{"exec_id":"a","argv":["true"],"ready":{"port":1}}`)
	f.Add("POST", "/v1/sandboxes/box/processes/a/wait", "", "application/json", `{"timeout_ms":1}`)
	f.Add("POST", "/v1/sandboxes/box/processes/a/stdin", "offset=3&end=true", "application/octet-stream", "x")
	f.Add("GET", "/v1/sandboxes/box/ports/0", "", "", "")
	f.Add("DELETE", "/v1/sandboxes/%2e%2e", "a=%zz", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, kind, body string) {
		if strings.Contains(body, "sleep") || strings.Contains(body, "yes") || strings.Contains(body, "size") || strings.Contains(body, "stuck") || strings.Contains(body, "cat") {
			return // programs without an end
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // for what is followed
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, "http://cloche/", strings.NewReader(body))
		if err != nil {
			return
		}
		req.URL.Path, req.URL.RawQuery = path, query
		req.Header.Set("Content-Type", kind)
		w := &deadlines{httptest.NewRecorder()}
		s.ServeKnown(w, req, known)
		if w.Code/100 == 2 {
			return
		}
		var b struct{ Error *api.Error }
		if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil || b.Error == nil {
			t.Fatalf("HTTP %d: %q", w.Code, w.Body.Bytes())
		}
		if b.Error.Code == api.CodeInternal && !strings.Contains(body, "fault") && !strings.Contains(body, "panic") {
			t.Fatalf("HTTP %d: %v", w.Code, b.Error)
		}
	})
}

// FuzzHeaderJSON: a header's JSON is ASCII without breaks and means the same.
func FuzzHeaderJSON(f *testing.F) {
	for _, s := range []string{"plain", "a\r\nb: c", "ü😀\u2028", "\x00\x7f", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h := httpapi.HeaderJSON(api.FileInfo{Name: s})
		for i := range len(h) {
			if h[i] < 0x20 || h[i] > 0x7e && h[i] != 0x7f {
				t.Fatalf("byte %#x in %q", h[i], h)
			}
		}
		plain, err := json.Marshal(api.FileInfo{Name: s})
		if err != nil {
			t.Fatal(err)
		}
		var want, got api.FileInfo
		if err := json.Unmarshal(plain, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(h), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %v", h, err)
		}
	})
}

func TestReportTrailerFits(t *testing.T) {
	report := api.TarReport{Entries: 5}
	for range 1000 {
		report.Skipped = append(report.Skipped, api.TarSkip{Path: strings.Repeat("ü", 200), Reason: "is a socket"})
	}
	s := httpapi.ReportTrailer(report)
	var got api.TarReport
	if err := json.Unmarshal([]byte(s), &got); err != nil || len(s) > 3<<10 {
		t.Fatalf("%d bytes: %v", len(s), err)
	}
	last := got.Skipped[len(got.Skipped)-1]
	if len(report.Skipped) != 1000 || got.Entries != 5 || !strings.HasPrefix(last.Reason, "and ") {
		t.Errorf("last entry %+v", last)
	}
	one := api.TarReport{Skipped: report.Skipped[:1]}
	if s := httpapi.ReportTrailer(one); strings.Contains(s, "more") {
		t.Errorf("%s", s)
	}
}

// deadlines is a recorder that takes deadlines, as a connection does.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }

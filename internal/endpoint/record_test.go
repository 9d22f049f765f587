package endpoint_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

// raw is an answer byte by byte, with the boundaries of its chunks.
func raw(t *testing.T, in *inside, method, path, headers, body string) string {
	t.Helper()
	a := in.say(t, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, path, in.addr, headers, len(body), body))
	lines := strings.SplitAfter(a, "\r\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Connection:") }), "")
}

// TestRecordAndReplay: traffic of an endpoint is replayed without its target:
// statuses, headers, trailers and each chunk, byte by byte; and no secret is kept.
func TestRecordAndReplay(t *testing.T) {
	store, err := recording.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var count atomic.Int64
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		n := count.Add(1)
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/v1/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Add("X-Two", "a")
			w.Header().Add("X-Two", "b")
			w.Header().Set("Set-Cookie", "door=open")
			w.Header().Set("Trailer", "X-After")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d %d\n\n", n, i)
				w.(http.Flusher).Flush()
			}
			w.Header().Set("X-After", "all")
		case "/v1/bytes":
			w.Write(append(body, 0, 0xff, 0xfe))
		case "/v1/none":
			w.WriteHeader(204)
		case "/v1/error":
			w.WriteHeader(429)
			fmt.Fprint(w, `{"error":"slow down"}`)
		case "/v1/echo-key":
			fmt.Fprint(w, r.Header.Get("X-Key"))
		}
	})
	rec, err := store.Record("t", "run", "sb-1", "model")
	if err != nil {
		t.Fatal(err)
	}
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"X-Key": "key"}}}, func(o *endpoint.Options) { o.Record = rec })
	type step struct{ method, path, headers, body string }
	steps := []step{
		{"POST", "/v1/stream?x=1&api_key=hunter2", "Authorization: Bearer hunter2\r\n", `{"a":1}`},
		{"POST", "/v1/stream?x=1&api_key=hunter2", "", `{"a":1}`},
		{"POST", "/v1/bytes", "", "\xff\x00\r\n"}, {"GET", "/v1/none", "", ""}, {"POST", "/v1/error", "", "{}"}, {"HEAD", "/v1/bytes", "", ""},
	}
	var then []string
	for _, s := range steps {
		then = append(then, raw(t, in, s.method, s.path, s.headers, s.body))
	}
	raw(t, in, "GET", "/v1/echo-key", "", "")
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	in.Close(t.Context(), 0)
	srv.Close()

	f, err := store.Read("t", "run")
	if err != nil {
		t.Fatal(err)
	}
	kept, _ := io.ReadAll(f)
	f.Close()
	for _, s := range []string{"hunter2", "s3cret", "door=open", "Bearer"} {
		if strings.Contains(string(kept), s) {
			t.Errorf("%s is kept", s)
		}
	}
	play, err := store.Play("t", "run", api.EndpointReplay{})
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, api.Endpoint{Target: "replay:run"}, func(o *endpoint.Options) { o.Play = play })
	for i, s := range steps {
		s.body = strings.Replace(s.body, `{"a":1}`, ` { "a" : 1 } `, 1) // it says the same
		want := strings.Replace(then[i], "Set-Cookie: door=open\r\n", "", 1)
		if got := raw(t, again, s.method, s.path, s.headers, s.body); got != want {
			t.Errorf("%s %s:\n%q, was\n%q", s.method, s.path, got, want)
		}
	}
	for _, c := range []struct{ path, body, want string }{
		{"/v1/stream?x=1&api_key=1", `{"a":1}`, "exchange 7 of recording run has no answer"},
		{"/v1/other", `{}`, "was recorded"},
	} {
		got := raw(t, again, "POST", c.path, "", c.body)
		if !strings.HasPrefix(got, "HTTP/1.1 422") || !strings.Contains(got, "replay_mismatch") {
			t.Errorf("%s: %s", c.path, got)
		}
	}
	if got := raw(t, again, "GET", "/v1/echo-key", "", ""); !strings.Contains(got, "it holds the value of a secret") {
		t.Error(got)
	}
	if x := again.last(t); x.Code != "replay_mismatch" || x.Outcome != "bridge_error" {
		t.Errorf("%+v", x)
	}
}

// TestReplayOfACut: what broke off breaks off again, and one that takes its time can be
// left.
func TestReplayOfACut(t *testing.T) {
	store, err := recording.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rec, err := store.Record("t", "run", "sb-1", "model")
	if err != nil {
		t.Fatal(err)
	}
	rec.Keep(recording.Exchange{N: 1, Request: recording.Request{Method: "GET", Path: "/cut"}, Response: recording.Response{Status: 200, Chunks: []recording.Chunk{recording.ChunkOf([]byte("half"), 0)}, Cut: true}})
	rec.Keep(recording.Exchange{N: 2, Request: recording.Request{Method: "GET", Path: "/slow"}, Response: recording.Response{Status: 200, Chunks: []recording.Chunk{recording.ChunkOf([]byte("one"), 1), recording.ChunkOf([]byte("two"), 3_600_000)}}})
	rec.Close()
	how := api.EndpointReplay{Pace: true}
	play, err := store.Play("t", "run", how)
	if err != nil {
		t.Fatal(err)
	}
	in := open(t, api.Endpoint{Target: "replay:run", Replay: &how}, func(o *endpoint.Options) { o.Play = play })
	resp, err := http.Get(in.base + "/cut")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "half" {
		t.Errorf("%q, %v", b, err)
	}
	resp.Body.Close()
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /slow HTTP/1.1\r\nHost: %s\r\n\r\n", in.addr)
	r := bufio.NewReader(c)
	for line := ""; line != "one\r\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if x := in.last(t); x.Outcome != "client_cancel" {
		t.Errorf("%+v", x)
	}
}

package recording_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

func open(t *testing.T) (*recording.Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := recording.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func asked(path, body string) recording.Request {
	return recording.Request{Method: "POST", Path: path, Body: recording.ChunkOf([]byte(body), 0)}
}

func said(text string) recording.Response {
	return recording.Response{
		Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}, "X-A": {"1", "2"}}, Trailer: http.Header{"X-Sum": {"9"}}, HeadMS: 3,
		Chunks: []recording.Chunk{recording.ChunkOf([]byte(text), 3), recording.ChunkOf([]byte("\xff\x00"), 7), recording.ChunkOf([]byte("end\r\n\r\n"), 7)},
	}
}

func record(t *testing.T, s *recording.Store, name string, all ...recording.Exchange) {
	t.Helper()
	w, err := s.Record("red", name, "sb-1", "model")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.N == 0 {
			x.N = w.Begin()
		}
		x.Time = time.Unix(1, 0).UTC()
		if !w.Keep(x) {
			t.Fatal("it is full")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplay: each answer is given once, exactly, to a request that says the same; any
// other is told where it differs.
func TestReplay(t *testing.T) {
	s, _ := open(t)
	record(t, s, "run",
		recording.Exchange{N: 2, Request: asked("/v1/a", `{"m":[{"c":"two"}],"n":1}`), Response: said("second")}, // it ended first
		recording.Exchange{N: 1, Request: asked("/v1/a", `{"m":[{"c":"one"}],"n":1}`), Response: said("first")},
		recording.Exchange{N: 3, Request: asked("/v1/a", `{"m":[{"c":"one"}],"n":1}`), Response: said("third")},
		recording.Exchange{N: 4, Request: asked("/v1/big", "raw"), Omitted: "it is too large to be kept"},
		recording.Exchange{N: 5, Request: recording.Request{Method: "GET", Path: "/q", Query: "a=1&key=redacted"}, Response: said("query")},
	)
	p, err := s.Play("red", "run", api.EndpointReplay{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, c := range []struct {
		request recording.Request
		want    string
		differs string
	}{
		{asked("/v1/a", ` { "n":1, "m":[ {"c":"one"} ] } `), "first", ""},
		{asked("/v1/a", `{"m":[{"c":"other"}],"n":1}`), "", `body.m[0].c: "two" was recorded, "other" is asked`},
		{asked("/v1/a", `{"m":[],"n":1}`), "", "body.m: 1 were recorded, 0 are asked"},
		{asked("/v1/a", `{"m":[{"c":"two"}],"n":1,"x":null}`), "", "body.x: null is asked, and was not recorded"},
		{asked("/v1/a", `{"m":[{"c":"two"}]}`), "", "body.n: 1 was recorded, and is not asked"},
		{asked("/v1/b", `{}`), "", `POST "/v1/a" was recorded, POST "/v1/b" is asked`},
		{asked("/v1/a", `{"m":[{"c":"one"}],"n":1}`), "third", ""},
		{asked("/v1/a", `{"m":[{"c":"two"}],"n":1}`), "second", ""},
		{asked("/v1/big", "raw"), "", "has no answer: it is too large to be kept"},
		{recording.Request{Method: "GET", Path: "/q", Query: recording.Query("a=2&key=other")}, "", `query: "a=1&key=redacted" was recorded, "a=2&key=redacted" is asked`},
		{recording.Request{Method: "GET", Path: "/q", Query: recording.Query("a=1&key=other")}, "query", ""},
		{asked("/v1/a", `{}`), "", "recording run has 5 answers, and all of them were given"},
	} {
		got, err := p.Next(c.request)
		if c.differs != "" {
			if _, ok := errors.AsType[*recording.Mismatch](err); !ok || !strings.HasSuffix(err.Error(), c.differs) {
				t.Errorf("%+v: %v, want …%s", c.request, err, c.differs)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, said(c.want)) {
			t.Errorf("%+v: %+v, %v", c.request, got, err)
		}
	}
	byOrder, err := s.Play("red", "run", api.EndpointReplay{Match: api.ReplayByOrder})
	if err != nil {
		t.Fatal(err)
	}
	defer byOrder.Close()
	for _, want := range []string{"first", "second", "third"} {
		if got, err := byOrder.Next(asked("/v1/a", `{"now":"`+want+`"}`)); err != nil || got.Chunks[0].Text != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := byOrder.Next(asked("/v1/a", "")); err == nil || !strings.Contains(err.Error(), `POST "/v1/big" was recorded`) {
		t.Error(err)
	}
}

// TestStore: recordings are a tenant's own, by names that are taken once, and go out
// and in again as they are.
func TestStore(t *testing.T) {
	s, dir := open(t)
	record(t, s, "run", recording.Exchange{Request: asked("/a", "x"), Response: said("y")}, recording.Exchange{Request: asked("/b", `"omitted":"`), Response: said(`"omitted":"`)}, recording.Exchange{Request: asked("/c", "x"), Omitted: "no"})
	info, err := s.Info("red", "run")
	if err != nil || info.Exchanges != 2 || info.Omitted != 1 || info.Sandbox != "sb-1" || info.Active || info.Bytes == 0 {
		t.Errorf("%+v, %v", info, err)
	}
	for what, err := range map[string]error{
		"of another tenant": second(s.Info("blue", "run")), "of no name": second(s.Info("red", "../run")), "play": second(s.Play("blue", "run", api.EndpointReplay{})),
	} {
		if c := api.CodeOf(err); c != api.CodeNotFound && c != api.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := s.List("blue"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := s.Record("red", "run", "sb-2", "model"); api.CodeOf(err) != api.CodeExists {
		t.Errorf("by another sandbox: %v", err)
	}

	f, err := s.Read("red", "run")
	if err != nil {
		t.Fatal(err)
	}
	data, _ := io.ReadAll(f)
	f.Close()
	if _, err := s.Put("blue", "mine", bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	p, err := s.Play("blue", "mine", api.EndpointReplay{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Next(asked("/a", "x")); err != nil || !reflect.DeepEqual(got, said("y")) {
		t.Errorf("%+v, %v", got, err)
	}
	p.Close()
	if _, err := s.Put("blue", "mine", bytes.NewReader(data)); api.CodeOf(err) != api.CodeExists {
		t.Errorf("twice: %v", err)
	}
	for name, text := range map[string]string{
		"": "", "none": "{}\n", "another version": `{"recording":2}` + "\n", "cut": `{"recording":1}` + "\n" + `{"n":1`, "no request": `{"recording":1}` + "\n{}\n",
		"split": "{\"recording\":1}\n" + `{"n":1,"request":{"method":"GET","path":"/"},"response":{"status":200,"header":{"X-A":["a\r\nb: c"]}}}` + "\n",
		"hop":   "{\"recording\":1}\n" + `{"n":1,"request":{"method":"GET","path":"/"},"response":{"status":200,"header":{"Transfer-Encoding":["x"]}}}` + "\n",
		"101":   "{\"recording\":1}\n" + `{"n":1,"request":{"method":"GET","path":"/"},"response":{"status":101}}` + "\n",
		"back":  "{\"recording\":1}\n" + `{"n":1,"request":{"method":"GET","path":"/"},"response":{"status":200,"chunks":[{"ms":5},{"ms":4}]}}` + "\n",
	} {
		if _, err := s.Put("blue", "bad", strings.NewReader(text)); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*.part")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	if err := s.Remove("blue", "mine"); err != nil {
		t.Error(err)
	}
	if err := s.Remove("blue", "mine"); api.CodeOf(err) != api.CodeNotFound {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestGoesOn: a recording goes on after a death of the daemon, without what was half
// written; one in which nothing is does not stay.
func TestGoesOn(t *testing.T) {
	s, dir := open(t)
	record(t, s, "run", recording.Exchange{Request: asked("/a", "x"), Response: said("y")})
	files, _ := filepath.Glob(filepath.Join(dir, "*", "run.jsonl"))
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"n":2,"requ`)
	f.Close()
	w, err := s.Record("red", "run", "sb-1", "model")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Record("red", "run", "sb-1", "model"); api.CodeOf(err) != api.CodeExists {
		t.Errorf("twice at once: %v", err)
	}
	if err := s.Remove("red", "run"); api.CodeOf(err) != api.CodeState {
		t.Errorf("removed while it is made: %v", err)
	}
	if info, err := s.Info("red", "run"); err != nil || !info.Active {
		t.Errorf("%+v, %v", info, err)
	}
	n := w.Begin()
	w.Keep(recording.Exchange{N: n, Request: asked("/b", "x"), Response: said("z")})
	w.Close()
	p, err := s.Play("red", "run", api.EndpointReplay{})
	if err != nil || n != 2 {
		t.Fatal(n, err)
	}
	defer p.Close()
	for _, path := range []string{"/b", "/a"} {
		if _, err := p.Next(asked(path, "x")); err != nil {
			t.Error(err)
		}
	}

	empty, err := s.Record("red", "empty", "sb-1", "model")
	if err != nil {
		t.Fatal(err)
	}
	empty.Close()
	if _, err := s.Info("red", "empty"); api.CodeOf(err) != api.CodeNotFound {
		t.Error(err)
	}
}

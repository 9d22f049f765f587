package client_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// notInPath are the methods with texts that go into no path of a URL, by the place of each
// among the method's texts: files, scripts and what else is in a body or a query.
var notInPath = map[string][]int{
	"InspectImage": {0}, "RemoveImage": {0}, "ExportImage": {0}, "RemoveByKey": {0}, "RunShell": {0}, "RunPython": {0}, "Shell": {1},
	"ReadFile": {1}, "OpenFile": {1}, "WriteFile": {1}, "WriteFileFrom": {1}, "StatFile": {1}, "ListFiles": {1, 2}, "MakeDir": {1},
	"MoveFile": {1, 2}, "RemoveFile": {1}, "TarOut": {1}, "TarIn": {1},
	"OpenSkillFile": {1}, "WriteSkillFile": {1}, "RemoveSkillFile": {1},
	"GetWorkspace": {0}, "RemoveWorkspace": {0},
}

// TestPathParts: no id and no name that a method is given changes the path of its URL, and
// what would is refused before anything is sent.
func TestPathParts(t *testing.T) {
	var asked atomic.Pointer[http.Request]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	c, err := client.New(client.Options{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v := reflect.ValueOf(c)
	for i := range v.NumMethod() {
		method, name := v.Method(i), v.Type().Method(i).Name
		order := -1
		for at := range method.Type().NumIn() {
			if method.Type().In(at) != reflect.TypeFor[string]() {
				continue
			}
			order++
			if name == "Files" || slices.Contains(notInPath[name], order) {
				continue
			}
			for _, part := range []string{"", ".", "..", "a/b", "../x", "a/../../x", "%2e%2e", "a?b", "a#b", "a%2fb", `a\b`, "a\nb"} {
				asked.Store(nil)
				err := callWith(t, method, at, part)
				r := asked.Load()
				if r == nil {
					if !errors.Is(err, api.ErrInvalid) {
						t.Errorf("%s with %q at %d: %v", name, part, at, err)
					}
					continue
				}
				path, _, _ := strings.Cut(r.RequestURI, "?")
				is := func(segment string) bool {
					got, err := url.PathUnescape(segment)
					return err == nil && got == part
				}
				if strings.Trim(part, ".") == "" || !slices.ContainsFunc(strings.Split(path, "/"), is) {
					t.Errorf("%s with %q at %d asks for %s", name, part, at, r.RequestURI)
				}
			}
		}
	}
	asked.Store(nil)
	for _, part := range []string{"", ".", "..", "a/b"} {
		if _, err := c.SetEndpoint(t.Context(), "box", api.Endpoint{Name: part}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("SetEndpoint with %q: %v", part, err)
		}
	}
	for _, part := range []string{"", ".", ".."} {
		if _, err := c.Files(part, api.FileAccess{}).Read(t.Context(), "/x"); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("Files with %q: %v", part, err)
		}
	}
	if r := asked.Load(); r != nil {
		t.Errorf("asked for %s", r.RequestURI)
	}
}

// callWith calls a method with a text at one place and usual arguments at all others, and
// returns its error.
func callWith(t *testing.T, method reflect.Value, at int, part string) error {
	t.Helper()
	in := make([]reflect.Value, method.Type().NumIn())
	for n := range in {
		kind := method.Type().In(n)
		switch {
		case n == at:
			in[n] = reflect.ValueOf(part)
		case kind == reflect.TypeFor[context.Context]():
			in[n] = reflect.ValueOf(t.Context())
		case kind == reflect.TypeFor[string]():
			in[n] = reflect.ValueOf("box")
		case kind == reflect.TypeFor[int]():
			in[n] = reflect.ValueOf(80)
		case kind == reflect.TypeFor[io.Reader]():
			in[n] = reflect.ValueOf(strings.NewReader(""))
		case kind == reflect.TypeFor[io.Writer]():
			in[n] = reflect.ValueOf(io.Discard)
		default:
			in[n] = reflect.Zero(kind)
		}
	}
	out := method.Call(in)
	if seq, ok := out[0].Interface().(iter.Seq2[api.Change, error]); ok {
		for _, err := range seq {
			return err
		}
	}
	err, _ := out[len(out)-1].Interface().(error)
	return err
}

package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestParseImageRef(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string][2]string{ // in full, and as people write it
		"python":                            {"docker.io/library/python:latest", "python:latest"},
		"python:3.11-slim":                  {"docker.io/library/python:3.11-slim", "python:3.11-slim"},
		"team/app":                          {"docker.io/team/app:latest", "team/app:latest"},
		"docker.io/python:3":                {"docker.io/library/python:3", "python:3"},
		"index.docker.io/library/python:3":  {"docker.io/library/python:3", "python:3"},
		"ghcr.io/owner/name:v1":             {"ghcr.io/owner/name:v1", "ghcr.io/owner/name:v1"},
		"localhost/x":                       {"localhost/x:latest", "localhost/x:latest"},
		"localhost:5000/x:y":                {"localhost:5000/x:y", "localhost:5000/x:y"},
		"127.0.0.1:5000/a/b/c":              {"127.0.0.1:5000/a/b/c:latest", "127.0.0.1:5000/a/b/c:latest"},
		"[::1]:5000/a":                      {"[::1]:5000/a:latest", "[::1]:5000/a:latest"},
		"Registry.Example/a":                {"registry.example/a:latest", "registry.example/a:latest"},
		"python@" + digest:                  {"docker.io/library/python@" + digest, "python@" + digest},
		"python:3@" + digest:                {"docker.io/library/python:3@" + digest, "python:3@" + digest},
		"a/b__c.d-e--f:T_a.g-1":             {"docker.io/a/b__c.d-e--f:T_a.g-1", "a/b__c.d-e--f:T_a.g-1"},
		"docker.io/library/a/b":             {"docker.io/library/a/b:latest", "library/a/b:latest"},
		"docker.io/example.com/b":           {"docker.io/example.com/b:latest", "docker.io/example.com/b:latest"},
		"ghcr.io/host:1":                    {"ghcr.io/host:1", "ghcr.io/host:1"},
		"team/host":                         {"docker.io/team/host:latest", "team/host:latest"},
		"docker.io/library/localhost/thing": {"docker.io/library/localhost/thing:latest", "library/localhost/thing:latest"},
	} {
		r, err := api.ParseImageRef(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if r.String() != want[0] || r.Familiar() != want[1] {
			t.Errorf("%q is %q and %q, want %q", text, r.String(), r.Familiar(), want)
		}
	}
	for _, bad := range []string{
		"", "Python", "-a", "a-", "a..b", "a//b", "/a", "a/", "a:", ":tag", "a:-b", "a@", "a@sha256:12", "a@sha512:" + digest[7:], "a b", "../a", "a/../b",
		"a\x00", "a\n", "http://a/b", "a@" + strings.ToUpper(digest), digest[7:], "_a", "x.y:99999999/a", "-x.y/a", "ä", strings.Repeat("a", 600), strings.Repeat("a", 248), strings.Repeat("h", 250) + ".h/" + strings.Repeat("a", 255),
		"a:" + strings.Repeat("t", 129),
	} {
		r, err := api.ParseImageRef(bad)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || e.Field != "image" || len(e.Message) > 400 {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
	// The host image is this machine's files: no registry is asked for it.
	for _, host := range []string{"host", "host:latest", "host@" + digest, "host:1@" + digest, "library/host", "docker.io/host", "Docker.io/library/host:1", "index.docker.io/host"} {
		r, err := api.ParseImageRef(host)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || !errors.Is(err, api.ErrHostImage) || e.Hint == "" {
			t.Errorf("%q: %+v, %v", host, r, err)
		}
	}
}

func FuzzParseImageRef(f *testing.F) {
	for _, seed := range []string{"python:3", "a.b:5/c/d:e@sha256:" + strings.Repeat("a", 64), "[::1]/x", "docker.io/a.b/c", "90Q0/0", "LOCALHOST/x", strings.Repeat("z", 250), strings.Repeat("h", 251) + ".h/" + strings.Repeat("a", 255)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := api.ParseImageRef(s)
		if err != nil {
			return
		}
		for _, text := range []string{r.String(), r.Familiar()} {
			if back, err := api.ParseImageRef(text); err != nil || back != r {
				t.Errorf("%q is %+v, and %q is %+v (%v)", s, r, text, back, err)
			}
		}
		if strings.Contains(r.Repository, "..") || strings.ContainsAny(r.String(), " \n\x00?#%\\") {
			t.Errorf("%q is %q", s, r)
		}
	})
}

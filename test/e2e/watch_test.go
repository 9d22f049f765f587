//go:build linux

package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

// changes are what a watch has reported.
type changes struct {
	mu  sync.Mutex
	got []string
}

// watchFiles watches a directory until the test ends, and returns when the watch is ready.
func watchFiles(t *testing.T, c *client.Client, ref, dir string, o api.WatchOptions) *changes {
	t.Helper()
	w, ready, done := &changes{}, make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- c.Files(ref, api.FileAccess{}).Watch(ctx, dir, o, func(ch api.FileChange) error {
			if ch.Kind == api.FileReady {
				close(ready)
				return nil
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got = append(w.got, string(ch.Kind)+" "+ch.Name)
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; api.CodeOf(err) != api.CodeCanceled && !errors.Is(err, context.Canceled) {
			t.Errorf("the watch of %s ended with %v", dir, err)
		}
	})
	return w
}

// all returns what has been reported.
func (w *changes) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.got)
}

// saw waits until all of these have been reported.
func (w *changes) saw(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	if !fixture.Poll(func() bool {
		got = w.all()
		return !slices.ContainsFunc(want, func(c string) bool { return !slices.Contains(got, c) })
	}) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

// TestWatch: a watch reports what programs inside change, what the API changes, and what the host
// changes in a directory that it gave.
func TestWatch(t *testing.T) {
	fixture.OnEnginesAnyUser(t, func(t *testing.T, engine string) {
		h := fixture.New(t)
		c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		given := t.TempDir()
		if err := os.Chmod(given, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(given, "below"), 0o777); err != nil {
			t.Fatal(err)
		}
		create := []string{"create", "--engine", engine, "--name", "box", "--mount", given + ":/given"}
		if out, status := h.Try(create...); status != 0 && os.Geteuid() != 0 && strings.Contains(out, "is not usable") {
			t.Skipf("needs engine %s, which is not usable for this user: %s", engine, out)
		} else if status != 0 {
			t.Fatalf("status %d: %s", status, out)
		}
		for _, dir := range []string{"/tmp", "/workspace", "/given"} {
			w := watchFiles(t, c, "box", dir, api.WatchOptions{Recursive: true})
			// A new directory is watched a moment after it is reported: what left it before is not.
			h.Must("exec", "box", "--", "sh", "-c", "cd "+dir+" && mkdir -p d/e && echo x > d/e/f")
			w.saw(t, "create d", "create d/e", "create d/e/f")
			h.Must("exec", "box", "--", "sh", "-c", "cd "+dir+" && mv d/e/f d/g && chmod 600 d/g && rm d/g")
			w.saw(t, "rename d/e/f", "create d/g", "chmod d/g", "remove d/g")
			if _, err := c.WriteFile(t.Context(), "box", dir+"/by-api", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			w.saw(t, "create by-api", "write by-api")
			if got := w.all(); slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, ".cloche-") }) {
				t.Errorf("%s: the agent's own files are reported: %q", dir, got)
			}
			if dir == "/given" {
				if err := os.WriteFile(filepath.Join(given, "below", "by-host"), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
				w.saw(t, "create below/by-host", "write below/by-host")
			}
		}
		if out, status := h.Try("watch", "box", "/etc/passwd"); status == 0 || !strings.Contains(out, "not a directory") {
			t.Errorf("a file: status %d: %s", status, out)
		}
	})
}

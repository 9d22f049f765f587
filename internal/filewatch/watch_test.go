//go:build linux

package filewatch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/filewatch"
)

// watched is a watch of a directory and what it reported.
type watched struct {
	t    *testing.T
	dir  string
	done chan error

	mu  sync.Mutex
	got []string
}

func watch(t *testing.T, dir string, o filewatch.Options) *watched {
	t.Helper()
	w := &watched{t: t, dir: dir, done: make(chan error, 1)}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	go func() {
		defer root.Close()
		w.done <- filewatch.Run(ctx, root, o, func(c filewatch.Change) error {
			if c.Kind == api.FileReady {
				close(ready)
				return nil
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got = append(w.got, string(c.Kind)+" "+c.Name)
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-w.done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
		w.done <- nil
	})
	select {
	case <-ready:
	case err := <-w.done:
		t.Fatal(err)
	}
	return w
}

func (w *watched) path(name string) string { return filepath.Join(w.dir, name) }

// must fails the test for an error of a change that it makes.
func (w *watched) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wait waits until all of these have been reported, in this order, and returns all that was.
func (w *watched) wait(want ...string) []string {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		got := slices.Clone(w.got)
		w.mu.Unlock()
		left := want
		for _, g := range got {
			if len(left) > 0 && g == left[0] {
				left = left[1:]
			}
		}
		if len(left) == 0 {
			return got
		}
		select {
		case <-tick.C:
		case <-late:
			w.t.Fatalf("%q was not reported: %q", left[0], got)
		}
	}
}

func TestChanges(t *testing.T) {
	w := watch(t, t.TempDir(), filewatch.Options{})
	w.must(os.WriteFile(w.path("f"), []byte("x"), 0o600))
	w.wait("create f", "write f")
	w.must(os.Chmod(w.path("f"), 0o640))
	w.must(os.Rename(w.path("f"), w.path("g")))
	w.must(os.Mkdir(w.path("d"), 0o700))
	w.must(os.WriteFile(w.path("d/below"), nil, 0o600))
	w.must(os.Remove(w.path("g")))
	w.must(os.RemoveAll(w.path("d")))
	got := w.wait("chmod f", "rename f", "create g", "create d", "remove g", "remove d")
	if slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, "below") }) {
		t.Errorf("a watch that is not recursive reported %q", got)
	}
}

// TestRecursive: a new directory is watched with what is in it already, and one that moves reports by
// its new path.
func TestRecursive(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "old/deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := watch(t, dir, filewatch.Options{Recursive: true})
	w.must(os.WriteFile(w.path("old/deep/f"), nil, 0o600))
	w.wait("create old/deep/f")
	w.must(os.MkdirAll(w.path("a/b/c"), 0o700))
	w.must(os.WriteFile(w.path("a/b/c/f"), nil, 0o600))
	w.wait("create a", "create a/b", "create a/b/c", "create a/b/c/f")
	w.must(os.Rename(w.path("a"), w.path("moved")))
	w.must(os.WriteFile(w.path("moved/b/g"), nil, 0o600))
	w.wait("rename a", "create moved", "create moved/b/g")
	// A tree that comes from outside is reported with its content, and one that leaves no more.
	other := t.TempDir()
	w.must(os.MkdirAll(filepath.Join(other, "in/x"), 0o700))
	w.must(os.Rename(filepath.Join(other, "in"), w.path("in")))
	w.wait("create in", "create in/x")
	w.must(os.Rename(w.path("moved"), filepath.Join(other, "moved")))
	w.must(os.WriteFile(filepath.Join(other, "moved/b/secret"), nil, 0o600))
	w.must(os.WriteFile(w.path("last"), nil, 0o600))
	got := w.wait("rename moved", "create last")
	for _, g := range got {
		if n := strings.Count(strings.Join(got, "\n")+"\n", g+"\n"); n > 1 && strings.HasPrefix(g, "create") {
			t.Errorf("%q was reported %d times", g, n)
		}
		if strings.Contains(g, "secret") {
			t.Errorf("a directory that left reported %q", g)
		}
	}
}

// TestManyNewFilesAreEachReported: no file of a directory that is filled while it is found is lost.
func TestManyNewFilesAreEachReported(t *testing.T) {
	w := watch(t, t.TempDir(), filewatch.Options{Recursive: true})
	var want []string
	for i := range 30 {
		dir := fmt.Sprint("d", i)
		w.must(os.Mkdir(w.path(dir), 0o700))
		for j := range 20 {
			name := fmt.Sprint(dir, "/f", j)
			w.must(os.WriteFile(w.path(name), nil, 0o600))
			want = append(want, "create "+name)
		}
	}
	w.must(os.WriteFile(w.path("last"), nil, 0o600))
	got := w.wait("create last")
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s was not reported", name)
		}
	}
}

func TestHidden(t *testing.T) {
	w := watch(t, t.TempDir(), filewatch.Options{Hide: func(base string) bool { return strings.HasPrefix(base, ".tmp-") }})
	w.must(os.WriteFile(w.path(".tmp-1"), []byte("x"), 0o600))
	w.must(os.Rename(w.path(".tmp-1"), w.path("f")))
	if got := w.wait("create f", "write f"); len(got) != 2 {
		t.Errorf("reported %q", got)
	}
}

// TestGone: the watch ends without an error when its directory is removed.
func TestGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := watch(t, dir, filewatch.Options{Recursive: true})
	w.must(os.Remove(dir))
	select {
	case err := <-w.done:
		if err != nil {
			t.Error(err)
		}
		w.done <- nil
	case <-time.After(20 * time.Second):
		t.Fatal("the watch goes on")
	}
}

// TestOverflow: a caller that is slow is told that changes were lost, and hears of later ones.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	end := errors.New("enough")
	proceed := make(chan struct{})
	var kinds []api.FileChangeKind
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- filewatch.Run(t.Context(), root, filewatch.Options{}, func(c filewatch.Change) error {
			if c.Kind == api.FileReady {
				close(started)
				return nil
			}
			<-proceed
			kinds = append(kinds, c.Kind)
			if c.Name == "last" {
				return end
			}
			return nil
		})
	}()
	<-started
	for i := range 12000 {
		name := filepath.Join(dir, fmt.Sprint("f", i%100))
		if i%200 < 100 {
			err = os.WriteFile(name, nil, 0o600)
		} else {
			err = os.Remove(name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(proceed)
	for i := 0; ; i++ {
		select {
		case err := <-ended:
			if !errors.Is(err, end) || !slices.Contains(kinds, api.FileOverflow) || len(kinds) > 11000 {
				t.Errorf("%v after %d changes, overflow told: %t", err, len(kinds), slices.Contains(kinds, api.FileOverflow))
			}
			return
		default:
			_ = os.Remove(filepath.Join(dir, "last"))
			if err := os.WriteFile(filepath.Join(dir, "last"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLimits: a tree with too many directories is refused at the start and told of later.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, filewatch.Options{Recursive: true, MaxDirs: 3})
	w.must(os.MkdirAll(w.path("a/b/c/d"), 0o700))
	w.wait("create a", "overflow ")
	root, err := os.Open(dir)
	w.must(err)
	defer root.Close()
	err = filewatch.Run(t.Context(), root, filewatch.Options{Recursive: true, MaxDirs: 3}, func(filewatch.Change) error { return nil })
	if !errors.Is(err, filewatch.ErrLimit) {
		t.Errorf("got %v, want the limit", err)
	}
}

// TestSymlinksAreNotFollowed, neither to a directory outside nor in the place of one that was there.
func TestSymlinksAreNotFollowed(t *testing.T) {
	out, dir := t.TempDir(), t.TempDir()
	w := watch(t, dir, filewatch.Options{Recursive: true})
	w.must(os.Symlink(out, w.path("link")))
	w.wait("create link")
	w.must(os.WriteFile(filepath.Join(out, "secret"), nil, 0o600))
	w.must(os.WriteFile(w.path("last"), nil, 0o600))
	if got := w.wait("create last"); slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, "secret") }) {
		t.Errorf("reported %q", got)
	}
}

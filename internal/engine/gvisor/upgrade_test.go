//go:build linux

package gvisor_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// install puts this executable, with some bytes after its end, where path is.
func install(t *testing.T, path, more string) {
	t.Helper()
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.MultiReader(own, strings.NewReader(more))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestUpgrade replaces the executable while a sandbox runs.
func TestUpgrade(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	state, home := t.TempDir(), filepath.Join(t.TempDir(), "bin")
	path := filepath.Join(t.TempDir(), "cloche")
	start := func(more string) (*gvisor.Engine, string) {
		install(t, path, more)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		e, err := gvisor.New(gvisor.Options{
			StateDir: state, ExePath: path, KeepDir: home, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e, hex.EncodeToString(sum[:])
	}
	kept := func() int {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(home, "*", "cloche"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	mounted := func(p *engine.Plan) { p.Mounts = []engine.Mount{{Source: t.TempDir(), Target: "/srv/job"}} }

	before, first := start("before")
	i := create(t, before, im, mounted)
	runsFrom(t, i, first, home)
	create(t, before, im, func(p *engine.Plan) { p.DieWithParent = true })
	if n := kept(); n != 1 {
		t.Errorf("%d executables are kept", n)
	}
	after, second := start("after")
	j := create(t, after, im, mounted)
	runsFrom(t, j, second, home)
	r, err := after.Recover(t.Context(), i.State())
	if err != nil {
		t.Fatal(err)
	}
	answers(t, r)
	answers(t, j)
	for _, want := range []int{2, 1, 1} {
		if err := after.SweepExecutables(); err != nil {
			t.Fatal(err)
		}
		if n := kept(); n != want {
			t.Errorf("%d executables are kept, want %d", n, want)
		}
		switch want {
		case 2:
			answers(t, r)
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := j.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// runsFrom proves that both processes execute the kept executable and hold
// nothing of it open.
func runsFrom(t *testing.T, i engine.Instance, hash, home string) {
	t.Helper()
	var s struct {
		Executable    string
		Sentry, Gofer struct{ PID int }
	}
	if err := json.Unmarshal(i.State(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Executable != hash {
		t.Errorf("the state names the executable %s, want %s", s.Executable, hash)
	}
	for _, pid := range []int{s.Sentry.PID, s.Gofer.PID} {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil && os.Geteuid() != 0 {
			return // not dumpable: no process may look, which is safe too
		}
		if want := filepath.Join(home, hash[:16], "cloche"); exe != want {
			t.Errorf("executes %s, want %s (%v)", exe, want, err)
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, home) {
				t.Errorf("holds %s", to)
			}
		}
	}
}

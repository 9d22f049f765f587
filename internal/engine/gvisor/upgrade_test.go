//go:build linux

package gvisor_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
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

// upgrade is a machine on which builds with executables of their own follow each other.
type upgrade struct {
	*testing.T
	state, home, path string
}

func newUpgrade(t *testing.T) upgrade {
	return upgrade{t, t.TempDir(), filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "cloche")}
}

// start installs a build, which has some bytes of its own, and starts it. It returns the engine and the hash of the executable.
func (u upgrade) start(more string) (*gvisor.Engine, string) {
	u.Helper()
	install(u.T, u.path, more)
	b, err := os.ReadFile(u.path)
	if err != nil {
		u.Fatal(err)
	}
	sum := sha256.Sum256(b)
	e, err := gvisor.New(gvisor.Options{
		StateDir: u.state, ExePath: u.path, KeepDir: u.home, Logger: slog.New(slog.NewTextHandler(u.Output(), nil)),
	})
	if err != nil {
		u.Fatal(err)
	}
	u.Cleanup(func() { e.Close() })
	return e, hex.EncodeToString(sum[:])
}

// kept is the number of executables that are kept.
func (u upgrade) kept() int {
	u.Helper()
	all, err := filepath.Glob(filepath.Join(u.home, "*", "cloche"))
	if err != nil {
		u.Fatal(err)
	}
	return len(all)
}

// TestUpgrade replaces the executable while a sandbox runs.
func TestUpgrade(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	u := newUpgrade(t)
	start, home, kept := u.start, u.home, u.kept
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
		if err := after.SweepExecutables(nil); err != nil {
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

// TestExecutableIsBusy: an executable that is open for writing, as one that was unpacked a moment ago can be, is executed when it
// is closed.
func TestExecutableIsBusy(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	u := newUpgrade(t)
	e, hash := u.start("busy")
	i, err := e.Create(t.Context(), enginetest.Plan(t, im)) // it is kept from here on
	if err == nil {
		err = i.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(u.home, hash[:16], "cloche"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.AfterFunc(100*time.Millisecond, func() { f.Close() })
	answers(t, create(t, e, im, nil))
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("it was executed after %v, while it was open for writing", took)
	}
}

// TestUpgradeWhileSuspended: a memory that another version of gVisor has saved continues with the executable that saved it, which
// is kept for that. Without that executable it is refused.
func TestUpgradeWhileSuspended(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	u := newUpgrade(t)
	before, first := u.start("before")
	before.OfVersion("v0.0.0-earlier")
	p := enginetest.Plan(t, im)
	p.Mounts = []engine.Mount{{Source: t.TempDir(), Target: "/srv/job"}}
	i, err := before.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := enginetest.Suspend(t, i)
	if err := i.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, second := u.start("after")
	runsFrom(t, create(t, after, im, func(p *engine.Plan) { p.Mounts = []engine.Mount{{Source: t.TempDir(), Target: "/srv/job"}} }), second, u.home)
	p.Dir, p.Memory = t.TempDir(), &m
	resume := func() (engine.Instance, error) {
		if err := after.SweepExecutables([][]byte{m.Note, []byte("of another engine")}); err != nil {
			t.Fatal(err)
		}
		return after.Create(t.Context(), p)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := after.Create(canceled, p); errors.Is(err, engine.ErrMemoryRefused) {
		t.Errorf("canceled: %v", err)
	}
	i, err = resume()
	if err != nil {
		t.Fatal(err)
	}
	answers(t, i)
	runsFrom(t, i, first, u.home)
	if err := i.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The executable is gone with the memory that needed it.
	if err := after.SweepExecutables(nil); err != nil {
		t.Fatal(err)
	}
	if n := u.kept(); n != 1 {
		t.Errorf("%d executables are kept", n)
	}
	if _, err = resume(); !errors.Is(err, engine.ErrMemoryRefused) || api.CodeOf(err) != api.CodeUnsupported || !strings.Contains(err.Error(), "v0.0.0-earlier") {
		t.Errorf("without its executable: %v", err)
	}
}

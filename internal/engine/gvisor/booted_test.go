//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// ahead is an engine that has a booted sandbox ready before each create.
type ahead struct {
	*gvisor.Engine
	t     testing.TB
	taken *atomic.Int64
}

// newAhead makes one. A booted sandbox that cannot be used although it is of the kind fails the test, unless the create is expected to fail.
func newAhead(t testing.TB, stateDir string, taken *atomic.Int64) engine.Engine {
	t.Helper()
	e, err := gvisor.New(gvisor.Options{StateDir: stateDir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return &ahead{Engine: e, t: t, taken: taken}
}

// Create implements engine.Engine.
func (a *ahead) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	i, err, fits := a.CreateBooted(ctx, p)
	if fits && err == nil {
		if !strings.Contains(string(i.State()), `"container":"booted-`) {
			a.t.Errorf("the sandbox that was ready could not be used: %s", i.State())
		}
		a.taken.Add(1)
	}
	return i, err
}

// TestEngineWithBooted: a sandbox that was booted before a request for it is like any other, and survives its daemon.
func TestEngineWithBooted(t *testing.T) {
	usable(t)
	var taken atomic.Int64
	enginetest.Run(t, enginetest.Setup{
		New:    func(t testing.TB, dir string) engine.Engine { return newAhead(t, dir, &taken) },
		Images: enginetest.BuildImages(t, t.TempDir()), Kill: kill, Isolates: true, OwnKernel: true, Survives: true,
	})
	t.Logf("%d sandboxes were ready", taken.Load())
	if taken.Load() < 20 && !t.Failed() {
		t.Errorf("only %d sandboxes were made of one that was ready", taken.Load())
	}
}

// TestKnownKinds: the next daemon has a sandbox ready of the kind that the last one used, before any request; not of
// an image that has changed, and not of another owner.
func TestKnownKinds(t *testing.T) {
	usable(t)
	dir, im := t.TempDir(), enginetest.BuildImages(t, t.TempDir())
	pooled := func(p *engine.Plan) { p.Pool = engine.Pool{User: "u", Ceiling: 1} }
	open := func() *gvisor.Engine {
		e, err := gvisor.New(gvisor.Options{StateDir: dir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	e := open()
	i := create(t, e, im, pooled)
	eventually(t, "a sandbox is ready", func() bool { return e.PoolCounts().Ready == 1 })
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e.Close()
	e = open()
	known := func(owner, agent string) {
		t.Helper()
		if err := e.PrepareKnown(owner, func() (string, error) { return agent, nil }); err != nil {
			t.Error(err)
		}
	}
	known("another owner", im.Agent)
	known("enginetest", im.Agent+".new")
	time.Sleep(20 * time.Millisecond)
	if c := e.PoolCounts(); c.Made != 0 {
		t.Errorf("%+v", c)
	}
	known("enginetest", im.Agent)
	eventually(t, "a sandbox is ready", func() bool { return e.PoolCounts().Ready == 1 })
	i = create(t, e, im, pooled)
	if c := e.PoolCounts(); c.Taken != 1 || c.Missed != 0 {
		t.Errorf("%+v", c)
	}
	if err := enginetest.Echo(t.Context(), i, "hello"); err != nil {
		t.Error(err)
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e.Close()
	now := time.Now()
	if err := os.Chtimes(im.Root, now, now); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "{", "[{}]", "null"} {
		if content != "" {
			if err := os.WriteFile(filepath.Join(dir, "pool", "kinds.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e = open()
		known("enginetest", im.Agent)
		i = create(t, e, im, pooled)
		if c := e.PoolCounts(); c.Taken != 0 {
			t.Errorf("%q: %+v", content, c)
		}
		if err := i.Close(t.Context()); err != nil {
			t.Error(err)
		}
		e.Close()
	}
}

// memberProcesses are the processes of the pool, by the engine's records.
func memberProcesses(t *testing.T, dir string) (sentries, gofers []int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*-booted-*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		var r struct{ Sentry, Gofer struct{ PID int } }
		if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &r) == nil {
			sentries, gofers = append(sentries, r.Sentry.PID), append(gofers, r.Gofer.PID)
		}
	}
	return sentries, gofers
}

func members(t *testing.T, dir string) []int {
	t.Helper()
	sentries, _ := memberProcesses(t, dir)
	return sentries
}

func memberGofers(t *testing.T, dir string) []int {
	t.Helper()
	_, gofers := memberProcesses(t, dir)
	return gofers
}

// TestClaimFails: a member that is dead, stopped or ill is of no use, and the caller gets a sandbox anyway. Nothing is
// left of the member.
func TestClaimFails(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for name, harm := range map[string]func(pid int, dir string) error{
		"killed":  func(pid int, _ string) error { return syscall.Kill(pid, syscall.SIGKILL) },
		"stopped": func(pid int, _ string) error { return syscall.Kill(pid, syscall.SIGSTOP) },
		"without its control socket": func(_ int, dir string) error {
			all, err := filepath.Glob(filepath.Join(dir, "booted-*", "control.sock"))
			if err != nil || len(all) != 1 {
				return fmt.Errorf("%v, %w", all, err)
			}
			return os.Remove(all[0])
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			e, err := gvisor.New(gvisor.Options{StateDir: dir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			pooled := func(p *engine.Plan) { p.Pool = engine.Pool{User: "u", Ceiling: 1} }
			create(t, e, im, pooled)
			eventually(t, "a sandbox is ready", func() bool { return e.PoolCounts().Ready == 1 })
			was := members(t, dir)
			if err := harm(was[0], dir); err != nil {
				t.Fatal(err)
			}
			i := create(t, e, im, pooled)
			if err := enginetest.Echo(t.Context(), i, "hello"); err != nil {
				t.Error(err)
			}
			if strings.Contains(string(i.State()), `"container":`) {
				t.Errorf("it was made of the member: %s", i.State())
			}
			eventually(t, "the member is gone", func() bool { return !slices.Contains(members(t, dir), was[0]) && syscall.Kill(was[0], 0) != nil })
			if err := i.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestClaimOfLostMount: the source of a mount that is gone fails the create as it does without a pool.
func TestClaimOfLostMount(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	dir, source := t.TempDir(), t.TempDir()
	e, err := gvisor.New(gvisor.Options{StateDir: dir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p := enginetest.Plan(t, im)
	p.Pool, p.Mounts = engine.Pool{User: "u", Ceiling: 1}, []engine.Mount{{Source: source, Target: "/srv/lost"}}
	i, err := e.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "a sandbox is ready", func() bool { return e.PoolCounts().Ready == 1 })
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), p); api.CodeOf(err) != api.CodeInternal {
		t.Errorf("%v", err)
	}
}

// TestCloseMeanwhile: an engine that is closed while sandboxes are created of its pool leaves nothing.
func TestCloseMeanwhile(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for n := range 6 {
		dir := t.TempDir()
		e, err := gvisor.New(gvisor.Options{StateDir: dir, Warm: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var plans []engine.Plan
		for range 4 {
			p := enginetest.Plan(t, im)
			p.Pool = engine.Pool{User: "u", Floor: 2, Ceiling: 3}
			plans = append(plans, p)
		}
		i, err := e.Create(t.Context(), plans[0])
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "two sandboxes are ready", func() bool { return e.PoolCounts().Ready == 2 })
		made := []engine.Instance{i}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, p := range plans[1:] {
			wg.Go(func() {
				if i, err := e.Create(t.Context(), p); err == nil {
					mu.Lock()
					defer mu.Unlock()
					made = append(made, i)
				}
			})
		}
		time.Sleep(time.Duration(n) * 4 * time.Millisecond)
		e.Close()
		wg.Wait()
		for _, i := range made {
			if err := i.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if left := members(t, dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != "pool" {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

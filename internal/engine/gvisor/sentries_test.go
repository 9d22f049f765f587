//go:build linux

package gvisor_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// newSparing is an engine that keeps a sentry ready.
func newSparing(t testing.TB, stateDir string) *gvisor.Engine {
	t.Helper()
	e, err := gvisor.New(gvisor.Options{StateDir: stateDir, Logger: logger, Warm: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// pooledSentries are the numbers of this process's children that are parked, or on
// their way.
func pooledSentries(t testing.TB) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		argv, _ := os.ReadFile(file)
		if !strings.HasPrefix(string(argv), "cloche-sentry-parked\x00") {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		// What follows the name: the state and the parent. The name may contain spaces.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits for as long as a busy machine may need.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

func sentryOf(t testing.TB, i engine.Instance) (pid int, cgroups []string) {
	t.Helper()
	var s struct {
		Sentry  struct{ PID int }
		Cgroups []string
	}
	if err := json.Unmarshal(i.State(), &s); err != nil || s.Sentry.PID == 0 {
		t.Fatalf("no sentry in the state %s: %v", i.State(), err)
	}
	return s.Sentry.PID, s.Cgroups
}

// TestEngineWithWarm: a sandbox whose sentry was started before a request for
// it is like any other, and survives its daemon.
func TestEngineWithWarm(t *testing.T) {
	usable(t)
	enginetest.Run(t, enginetest.Setup{
		New: func(t testing.TB, dir string) engine.Engine {
			e, before := newSparing(t, dir), len(pooledSentries(t))
			e.Prepare("enginetest", 2, false)
			eventually(t, "a sentry is ready", func() bool { return len(pooledSentries(t)) > before })
			return e
		},
		Images: enginetest.BuildImages(t, t.TempDir()), Kill: kill, Isolates: true, Survives: true,
		Only: []string{"Life", "CreateErrors", "DoneWhenKilled", "RecoverAlive", "RecoverDead", "Sweep", "Pause", "Inside", "Link", "Mounts", "MountSockets", "MemoryLimit", "CPULimit"},
	})
}

// TestWarm: the sentry that is ready becomes the next sandbox's, one for the sandbox
// after it is started, and nothing of it is left when the engine is closed.
func TestWarm(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	e := newSparing(t, t.TempDir())
	e.Prepare("enginetest", 2, false)
	var i engine.Instance
	var pid int
	var cgroups []string
	// One that is seen may not have said yet that it is ready: then another is started,
	// and the sandbox after that has one.
	for try, ready := 0, 0; pid != ready || try == 0; try++ {
		if try == 10 {
			t.Fatalf("the sentry is %d, and %d was ready", pid, ready)
		}
		eventually(t, "a sentry is ready", func() bool { return len(pooledSentries(t)) == 1 })
		ready = pooledSentries(t)[0]
		i = create(t, e, im, nil)
		pid, cgroups = sentryOf(t, i)
	}
	if err := enginetest.Echo(t.Context(), i, "hello"); err != nil {
		t.Error(err)
	}
	eventually(t, "the next one is ready", func() bool { return len(pooledSentries(t)) == 1 })
	for _, dir := range cgroups {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if sentry, serr := os.ReadFile(filepath.Join(dir, "sentry", "cgroup.procs")); serr == nil {
			procs, err = sentry, nil
		}
		if err != nil || !slices.Contains(strings.Fields(string(procs)), strconv.Itoa(pid)) {
			t.Errorf("the sentry is not in %s: %q, %v", dir, procs, err)
		}
	}
	// It is not in the state of any sandbox and is still kept.
	if err := e.Sweep(t.Context(), "enginetest", func(id string) bool { return id == planID(t, i) }); err != nil {
		t.Error(err)
	}
	if len(pooledSentries(t)) != 1 {
		t.Error("the sentry was swept away")
	}
	if err := enginetest.Echo(t.Context(), i, "again"); err != nil {
		t.Error(err)
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if left := pooledSentries(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, dir := range cgroups {
		if names, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "spare-*")); len(names) > 0 {
			t.Errorf("left: %v", names)
		}
	}
}

// TestPrepared: a sentry that was asked for is used, also by an engine that keeps nothing ready, as in a run without
// a daemon; that starts no other.
func TestPrepared(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	e := newEngine(t, t.TempDir())
	e.Prepare("enginetest", 2, false)
	eventually(t, "a sentry is ready", func() bool { return e.Sentries() == 1 })
	ready := pooledSentries(t)[0]
	i := create(t, e, im, nil)
	if pid, _ := sentryOf(t, i); pid != ready {
		t.Errorf("the sentry is %d, and %d was ready", pid, ready)
	}
	if left := pooledSentries(t); len(left) != 0 {
		t.Errorf("ready: %v", left)
	}
}

func planID(t testing.TB, i engine.Instance) string {
	t.Helper()
	var s struct{ ID string }
	if err := json.Unmarshal(i.State(), &s); err != nil || s.ID == "" {
		t.Fatalf("no id in the state %s: %v", i.State(), err)
	}
	return s.ID
}

// TestWarmThatDoesNotFit: a sentry is one owner's, has that many processors and dies
// with the engine or not; another plan gets another sentry.
func TestWarmThatDoesNotFit(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for name, change := range map[string]func(*engine.Plan){
		"owner":  func(p *engine.Plan) { p.Owner = "enginetest-other" },
		"attach": func(p *engine.Plan) { p.DieWithParent = true },
	} {
		t.Run(name, func(t *testing.T) {
			e := newSparing(t, t.TempDir())
			e.Prepare("enginetest", 2, false)
			eventually(t, "a sentry is ready", func() bool { return len(pooledSentries(t)) == 1 })
			ready := pooledSentries(t)[0]
			i := create(t, e, im, change)
			if pid, _ := sentryOf(t, i); pid == ready {
				t.Error("it got the sentry that was not for it")
			}
			if err := i.Close(t.Context()); err != nil {
				t.Error(err)
			}
			e.Close()
			if left := pooledSentries(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestWarmThatDied: a sentry that was killed is replaced.
func TestWarmThatDied(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	e := newSparing(t, t.TempDir())
	e.Prepare("enginetest", 2, false)
	eventually(t, "a sentry is ready", func() bool { return len(pooledSentries(t)) == 1 })
	p, err := os.FindProcess(pooledSentries(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return len(pooledSentries(t)) == 0 })
	i := create(t, e, im, nil)
	if err := enginetest.Echo(t.Context(), i, "hello"); err != nil {
		t.Error(err)
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTooManyMounts: a sentry has numbers for so many descriptors.
func TestTooManyMounts(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	e := newEngine(t, t.TempDir())
	p := enginetest.Plan(t, im)
	dir := t.TempDir()
	for n := range 300 {
		p.Mounts = append(p.Mounts, engine.Mount{Source: dir, Target: "/srv/m" + strconv.Itoa(n)})
	}
	_, err := e.Create(t.Context(), p)
	if api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("create: %v", err)
	}
}

package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Setup describes an engine to the suite.
type Setup struct {
	// New makes an engine that keeps its own records in stateDir. Two made with
	// one directory are the engine before and after a restart of the daemon.
	New func(t testing.TB, stateDir string) engine.Engine
	// Images are what BuildImages built.
	Images Images
	// Kill kills the instance from outside, without its engine's knowledge.
	Kill func(t testing.TB, state []byte)
	// PID is the number of the instance's first process; nil when its command line has
	// the instance's id in it.
	PID func(state []byte) int
	// Left names what an engine's own daemon still has of a plan. It is nil for an engine without
	// a daemon.
	Left func(t testing.TB, p engine.Plan) []string
	// Isolates is false for an engine that only pretends: it is spared what
	// needs a root filesystem, mounts or limits of its own.
	Isolates bool
	// Remote is for an engine of the tier remote: what a sandbox is isolated by is the service's, so
	// what needs a root filesystem, mounts or limits is left out, and Left says whether an instance is
	// at the service.
	Remote bool
	// Survives is false for an engine whose instances end with their process.
	Survives bool
	// Slow is for an engine whose steps take long: what is tried at many moments is
	// tried at fewer.
	Slow bool
	// Daemon is for an engine whose sandboxes a daemon of containers makes: they have the
	// host's own /proc/stat, and what the daemon shows them of their cgroup.
	Daemon bool
	// SharedTables says why what the kernel counts by user is counted for root of the host;
	// empty is that it is not.
	SharedTables string
	// OwnKernel is for an engine whose sandboxes have a kernel of their own: what it shows
	// is not the host's.
	OwnKernel bool
	// Only are the names of the tests to run; empty is all.
	Only []string
}

// patience limits each wait of the suite. Nothing in it takes even a tenth of that, except on an
// emulated processor.
const patience = 60 * time.Second

// slowEnv says that the processor is emulated: every engine is slow.
const slowEnv = "ENGINETEST_SLOW"

// suite is one test of the suite with an engine of its own.
type suite struct {
	*testing.T
	Setup
	ctx      context.Context
	stateDir string
	engine   engine.Engine
}

// Run tests the engine contract.
func Run(t *testing.T, s Setup) {
	s.Slow = s.Slow || os.Getenv(slowEnv) != ""
	tests := []struct {
		name string
		f    func(*suite)
		need bool
	}{
		{"Probe", testProbe, true},
		{"Abilities", testAbilities, s.Isolates},
		{"Life", testLife, true},
		{"DialManyTimes", testDialManyTimes, true},
		{"CreateErrors", testCreateErrors, true},
		{"CreateCanceled", testCreateCanceled, true},
		{"NothingLeaks", testNothingLeaks, true},
		{"DoneWhenKilled", testDoneWhenKilled, true},
		{"DoneWhenAgentEnds", testDoneWhenAgentEnds, true},
		{"RecoverAlive", testRecoverAlive, true},
		{"RecoverDead", testRecoverDead, true},
		{"RecoverInLaterProcess", testRecoverInLaterProcess, s.Survives},
		{"DieWithParent", testDieWithParent, true},
		{"Sweep", testSweep, true},
		{"SweepAfterSuddenDeath", testSweepAfterSuddenDeath, s.Survives},
		{"Pause", testPause, true},
		{"CloseOfPaused", testCloseOfPaused, true},
		{"CloseOfStopped", testCloseOfStopped, s.Isolates},
		{"CloseWhilePausing", testCloseWhilePausing, true},
		{"SweepOfPaused", testSweepOfPaused, true},
		{"PausedInLaterProcess", testPausedInLaterProcess, s.Survives},
		{"PausedDiesWithParent", testPausedDiesWithParent, s.Isolates},
		{"Suspend", testSuspend, true},
		{"SuspendRunsOn", testSuspendRunsOn, true},
		{"SuspendRefused", testSuspendRefused, true},
		{"CloseWhileSuspending", testCloseWhileSuspending, true},
		{"WriteRoot", testWriteRoot, true},
		{"WriteRootWhenCallerDies", testWriteRootWhenCallerDies, true},
		{"WriteRootOfClosed", testWriteRootOfClosed, true},
		{"RootLayer", testRootLayer, s.Isolates},
		{"Inside", testInside, s.Isolates},
		{"KernelFiles", testKernelFiles, s.Isolates},
		{"Tables", testTables, s.Isolates},
		{"CountedTable", testCountedTable, s.Isolates},
		{"HugePages", testHugePages, s.Isolates},
		{"Devices", testDevices, s.Isolates},
		{"Reach", testReach, s.Isolates},
		{"Link", testLink, s.Isolates},
		{"LinkEnds", testLinkEnds, true},
		{"LinkAlone", testLinkAlone, s.Isolates},
		{"UID", testUID, s.Isolates},
		{"Numbers", testNumbers, s.Isolates},
		{"Mounts", testMounts, s.Isolates},
		{"MountPoints", testMountPoints, s.Isolates},
		{"MountSockets", testMountSockets, s.Isolates},
		{"ReadOnlyRoot", testReadOnlyRoot, s.Isolates},
		{"DiskLimit", testDiskLimit, s.Isolates},
		{"MemoryLimit", testMemoryLimit, s.Isolates},
		{"SocketMemory", testSocketMemory, s.Isolates},
		{"CPULimit", testCPULimit, s.Isolates},
		{"LimitsSeen", testLimitsSeen, s.Isolates},
		{"PidsLimitForAgent", testPidsLimit, s.Isolates},
	}
	for _, test := range tests {
		if !test.need || len(s.Only) > 0 && !slices.Contains(s.Only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			bound := patience
			if s.Slow {
				bound *= 3
			}
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			dir := t.TempDir()
			test.f(&suite{T: t, Setup: s, ctx: ctx, stateDir: dir, engine: s.New(t, dir)})
		})
	}
}

// plan is an ordinary plan that asks for no limit which the engine says it cannot
// enforce.
func (s *suite) plan() engine.Plan {
	s.Helper()
	p := Plan(s, s.Images)
	for limit, e := range s.engine.Probe(s.ctx).Enforces {
		switch {
		case e.OK:
		case limit == "memory_bytes":
			p.Limits.MemoryBytes = 0
		case limit == "cpus":
			p.Limits.CPUs = 0
		case limit == "pids":
			p.Limits.Pids = 0
		case limit == "disk_bytes":
			p.Limits.DiskBytes = 0
		}
	}
	return p
}

// create makes an instance and, at the end of the test, closes it and proves
// that nothing is left of it.
func (s *suite) create(change func(*engine.Plan)) (engine.Instance, engine.Plan) {
	s.Helper()
	p := s.plan()
	if change != nil {
		change(&p)
	}
	i, err := s.engine.Create(s.ctx, p)
	if err != nil {
		s.Fatalf("create: %v (%v)", err, errors.Unwrap(err))
	}
	s.Cleanup(func() {
		s.close(i)
		s.nothingLeft(p)
	})
	return i, p
}

func (s *suite) close(i engine.Instance) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), patience)
	defer cancel()
	if err := i.Close(ctx); err != nil {
		s.Errorf("close: %v", err)
	}
}

// exec runs a program inside that must succeed.
func (s *suite) exec(i engine.Instance, argv ...string) string {
	s.Helper()
	o, err := Exec(s.ctx, i, argv...)
	if err != nil {
		s.Fatalf("exec %v: %v", argv, err)
	}
	if o.Code != 0 || o.Error != "" {
		s.Fatalf("exec %v: code %d, %s\n%s", argv, o.Code, o.Error, o.Output)
	}
	return string(o.Output)
}

// fails runs a program inside that must not succeed.
func (s *suite) fails(i engine.Instance, argv ...string) string {
	s.Helper()
	o, err := Exec(s.ctx, i, argv...)
	if err != nil {
		s.Fatalf("exec %v: %v", argv, err)
	}
	if o.Code == 0 {
		s.Errorf("exec %v succeeded:\n%s", argv, o.Output)
	}
	return string(o.Output)
}

func (s *suite) done(i engine.Instance) {
	s.Helper()
	select {
	case <-i.Done():
	case <-s.ctx.Done():
		s.Fatal("Done is not closed although the instance is dead")
	}
}

func (s *suite) alive(i engine.Instance) {
	s.Helper()
	select {
	case <-i.Done():
		s.Fatal("Done is closed although the instance lives")
	default:
	}
	if err := Echo(s.ctx, i, "are you there"); err != nil {
		s.Fatalf("dial: %v", err)
	}
}

func (s *suite) code(what string, err error, want api.Code) {
	s.Helper()
	if got := api.CodeOf(err); got != want {
		s.Errorf("%s: error %v (%v) has code %q, want %q", what, err, errors.Unwrap(err), got, want)
	}
}

func testProbe(s *suite) {
	r := s.engine.Probe(s.ctx)
	if !r.Usable {
		s.Fatalf("not usable: %v", r.Problems)
	}
	if r.Name != s.engine.Name() || r.Tier == "" {
		s.Errorf("report of %q has name %q and tier %q", s.engine.Name(), r.Name, r.Tier)
	}
	for _, limit := range []string{"cpus", "memory_bytes", "pids", "disk_bytes", "egress"} {
		e, ok := r.Enforces[limit]
		if !ok || !e.OK && e.Reason == "" {
			s.Errorf("report does not say whether it enforces %s, or why not: %+v", limit, e)
		}
	}
}

func testLife(s *suite) {
	i, p := s.create(nil)
	s.alive(i)
	state := string(i.State())
	if state == "" || strings.Contains(state, "Port\"") {
		s.Errorf("state is empty or holds the agent's configuration: %s", state)
	}
	if _, err := s.engine.Create(s.ctx, p); api.CodeOf(err) != api.CodeExists {
		s.Errorf("create of an id that exists: %v", err)
	}
	s.alive(i)
	for range 2 {
		s.close(i)
		s.done(i)
		s.nothingLeft(p)
	}
	if string(i.State()) != state {
		s.Error("state has changed over the instance's life")
	}
	_, err := i.Dial(s.ctx)
	s.code("dial after close", err, api.CodeSandboxLost)
}

func testDialManyTimes(s *suite) {
	i, _ := s.create(nil)
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			msg := strings.Repeat(fmt.Sprint(n), 1000)
			if err := Echo(s.ctx, i, msg); err != nil {
				s.Errorf("stream %d: %v", n, err)
			}
		})
	}
	wg.Wait()
}

func testDoneWhenKilled(s *suite) {
	i, p := s.create(nil)
	s.alive(i)
	s.Kill(s, i.State())
	s.done(i)
	_, err := i.Dial(s.ctx)
	s.code("dial of a dead instance", err, api.CodeSandboxLost)
	s.close(i)
	s.nothingLeft(p)
}

func testDoneWhenAgentEnds(s *suite) {
	i, _ := s.create(nil)
	conn, err := i.Dial(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(`{"exit":true}` + "\n")); err != nil {
		s.Fatal(err)
	}
	s.done(i)
}

// testNothingLeaks counts what this process holds after many lives.
func testNothingLeaks(s *suite) {
	round := func(ok bool) {
		p := s.plan()
		if !ok {
			p.Agent.Argv = []string{Inside, "agent", "complain"}
		}
		i, err := s.engine.Create(s.ctx, p)
		if ok != (err == nil) {
			s.Fatalf("create: %v", err)
		}
		if ok {
			s.alive(i)
			s.close(i)
		}
	}
	count := func() (files, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			s.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	round(true)
	files, goroutines := count()
	for n := range 6 {
		round(n%3 != 0)
	}
	s.eventually("files and goroutines are no more than before", func() bool {
		f, g := count()
		return f <= files && g <= goroutines
	})
}

// InitPID is Setup.PID for an engine whose state names its first process, which is the agent. It
// returns an unused number if the state does not.
func InitPID(state []byte) int {
	var s struct{ Init struct{ PID int } }
	if err := json.Unmarshal(state, &s); err != nil || s.Init.PID <= 1 {
		return 1 << 30
	}
	return s.Init.PID
}

// KillInit is Setup's Kill for such an engine.
func KillInit(t testing.TB, state []byte) {
	t.Helper()
	if err := unix.Kill(InitPID(state), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

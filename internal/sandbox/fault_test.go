//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/workspace"
	"github.com/cloche-dev/cloche/test/longtest"
)

// everything is a spec of which each step of a create has something to do.
func everything(t *testing.T) api.SandboxSpec {
	t.Helper()
	w := &api.Workspace{Name: "kept"}
	if workspace.HardQuota(t.TempDir()).OK {
		w.SizeBytes = 4 << 20
	}
	return api.SandboxSpec{Name: "x", Workspace: w, Egress: &api.Egress{Allow: []string{"a.example"}}, Files: []api.File{{Path: t.TempDir() + "/file", Content: api.Bytes("x")}}}
}

// points are all the points that do passes, in their order.
func points(t *testing.T, do func(w *fixture, m *sandbox.Manager, begin func())) []string {
	t.Helper()
	w := newFixture(t)
	var mu sync.Mutex
	var seen []string
	w.trap = func(_ context.Context, point string) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, point)
		return nil
	}
	do(w, w.manager(false), func() {
		mu.Lock()
		defer mu.Unlock()
		seen = nil
	})
	mu.Lock()
	defer mu.Unlock()
	return seen
}

func createPoints(t *testing.T) []string {
	all := points(t, func(w *fixture, m *sandbox.Manager, _ func()) {
		if _, err := m.Create(t.Context(), w.permit(everything(t)), nil); err != nil {
			t.Fatal(err)
		}
	})
	if len(all) != 34 {
		t.Fatalf("points of a create: %v, want two for each of seventeen steps", all)
	}
	return all
}

func removePoints(t *testing.T) []string {
	return points(t, func(w *fixture, m *sandbox.Manager, begin func()) {
		w.create(m, "x")
		begin()
		if err := m.Remove(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
	})
}

var errWanted = errors.New("wanted")

// Whatever step of a create fails, before or after what it does, nothing is
// left of it and the name is free again.
func TestFaultAtEveryPointOfACreate(t *testing.T) {
	longtest.Skip(t, "it makes a sandbox for each fault")
	noGoroutinesLeft(t)
	for _, point := range createPoints(t) {
		for _, hang := range []bool{false, true} {
			name := point + " fails"
			if hang {
				name = point + " hangs"
			}
			t.Run(name, func(t *testing.T) {
				w := newFixture(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				armed := true
				w.trap = func(ctx context.Context, p string) error {
					if p != point || !armed {
						return nil
					}
					armed = false
					if hang {
						cancel()
						<-ctx.Done()
						return ctx.Err()
					}
					return errWanted
				}
				m := w.manager(false)
				_, err := m.Create(ctx, w.permit(everything(t)), nil)
				want := api.CodeInternal
				if hang {
					want = api.CodeCanceled
				}
				if api.CodeOf(err) != want || strings.Contains(err.Error(), w.dir) {
					t.Errorf("create: %v, want %s without a path of the host", err, want)
				}
				w.nothingLeft(m)
				w.create(m, "x")
			})
		}
	}
}

// trapAt makes w's daemons stop dead at a point, once. reached is closed when
// one has; what hangs ends with an error when free is called.
func (w *fixture) trapAt(point string) (reached chan struct{}, free func()) {
	reached = make(chan struct{})
	freed := make(chan struct{})
	var once sync.Once
	w.trap = func(_ context.Context, p string) error {
		if p == point {
			hit := false
			once.Do(func() { hit = true; close(reached) })
			if hit {
				<-freed
				return errWanted
			}
		}
		return nil
	}
	return reached, sync.OnceFunc(func() { close(freed) })
}

// holdAt makes w's next daemon wait at a point, once, until proceed is closed. reached is closed when it does.
func (w *fixture) holdAt(point string) (reached, proceed chan struct{}) {
	reached, proceed = make(chan struct{}), make(chan struct{})
	w.trap = func(_ context.Context, p string) error {
		if p == point {
			close(reached)
			<-proceed
		}
		return nil
	}
	return reached, proceed
}

// A daemon that is killed at any point of a create leaves nothing that the next
// one does not clear, and what is complete is kept.
func TestCrashAtEveryPointOfACreate(t *testing.T) {
	longtest.Skip(t, "it makes a sandbox for each crash")
	noGoroutinesLeft(t)
	for _, point := range createPoints(t) {
		t.Run(point, func(t *testing.T) {
			w := newFixture(t)
			reached, free := w.trapAt(point)
			first := w.manager(false)
			var wg sync.WaitGroup
			t.Cleanup(wg.Wait)
			t.Cleanup(free)
			permit := w.permit(everything(t))
			wg.Go(func() { _, _ = first.Create(t.Context(), permit, nil) })
			<-reached
			sandbox.Crash(first)
			w.trap = nil
			second := w.manager(false)
			if point == "after record" {
				if sb, err := second.Get(operator, "x"); err != nil || sb.State != api.StateRunning {
					t.Errorf("a complete sandbox: %+v, %v", sb, err)
				}
				if err := second.Remove(t.Context(), operator, "x"); err != nil {
					t.Error(err)
				}
			}
			w.nothingLeft(second)
			w.create(second, "x")
		})
	}
	// At StepStart the imaginary machine lists what has no process yet, and a sweep
	// would wait for that to end.
	for _, step := range []fake.Step{fake.StepRecord, fake.StepReady} {
		t.Run("engine "+string(step), func(t *testing.T) {
			w := newFixture(t)
			first := w.manager(false)
			reached, freed := make(chan struct{}), make(chan struct{})
			w.machine.SetFaults(fake.Faults{At: func(s fake.Step) {
				if s == step {
					close(reached)
					<-freed
				}
			}})
			ctx, cancel := context.WithCancel(t.Context())
			permit := w.permit(everything(t))
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = first.Create(ctx, permit, nil) })
			<-reached
			w.machine.SetFaults(fake.Faults{})
			sandbox.Crash(first)
			second := w.manager(false)
			cancel()
			close(freed)
			wg.Wait()
			w.nothingLeft(second)
			w.create(second, "x")
		})
	}
}

// A removal or a stop in which the daemon is killed is finished by the next
// one, and what was being removed is never called lost.
func TestCrashAtEveryPointOfAnEnd(t *testing.T) {
	noGoroutinesLeft(t)
	all := removePoints(t)
	for _, want := range []string{"removing", "stopping", "before close", "after close", "before erase", "after erase"} {
		if !slices.Contains(all, want) {
			t.Fatalf("points of a removal: %v, want %q among them", all, want)
		}
	}
	for _, point := range all {
		for _, remove := range []bool{true, false} {
			if !remove && !slices.Contains([]string{"stopping", "before close", "after close"}, point) {
				continue
			}
			name := "stop " + point
			if remove {
				name = "rm " + point
			}
			t.Run(name, func(t *testing.T) {
				w := newFixture(t)
				reached, free := w.trapAt(point)
				first := w.manager(false)
				w.create(first, "x")
				var wg sync.WaitGroup
				wg.Go(func() {
					if remove {
						_ = first.Remove(t.Context(), operator, "x")
					} else {
						_, _ = first.Stop(t.Context(), operator, "x", new(time.Second))
					}
				})
				<-reached
				sandbox.Crash(first)
				w.trap = nil
				second := w.manager(false)
				eventually(t, "the next daemon finishes it", func() bool {
					got := states(second)
					if slices.Contains(got, api.StateLost) {
						t.Fatal("it is called lost")
					}
					return len(got) == 0 || !remove && got[0] == api.StateStopped
				})
				free()
				wg.Wait()
				if !remove {
					if err := second.Remove(t.Context(), operator, "x"); err != nil {
						t.Error(err)
					}
				}
				w.nothingLeft(second)
			})
		}
	}
}

// An end that fails at any point is retried until it is done.
func TestFaultAtEveryPointOfAnEnd(t *testing.T) {
	noGoroutinesLeft(t)
	for _, point := range removePoints(t) {
		t.Run("rm "+point, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			var once sync.Once
			w.trap = func(_ context.Context, p string) (err error) {
				if p == point {
					once.Do(func() { err = errWanted })
				}
				return err
			}
			m := w.manager(false)
			w.create(m, "x")
			_ = m.Remove(t.Context(), operator, "x") // whether it says so or not
			eventually(t, "it is gone", func() bool { return len(states(m)) == 0 })
			w.nothingLeft(m)
			w.create(m, "x")
			if got := w.kinds(); !slices.Contains(got, "removed") {
				t.Errorf("events %v", got)
			}
		})
	}
	for _, step := range fake.CloseSteps() {
		t.Run("engine "+string(step), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			m := w.manager(false)
			w.create(m, "x")
			w.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{step: errWanted}})
			if err := m.Remove(t.Context(), operator, "x"); err == nil {
				t.Error("a removal that failed says nothing")
			}
			w.machine.SetFaults(fake.Faults{})
			eventually(t, "it is gone", func() bool { return len(states(m)) == 0 })
			w.nothingLeft(m)
		})
	}
}

// A record that the first version wrote is adopted, and rewritten as it is used.
func TestRecordOfTheFirstVersion(t *testing.T) {
	w := newFixture(t)
	first := w.manager(false)
	sb := w.create(first, "x")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sandbox.DowngradeForTest(t, filepath.Join(w.dir, "owner", "sandboxes", sb.ID))
	second := w.manager(false)
	got, err := second.Get(operator, "x")
	if err != nil || got.State != api.StateRunning || !got.Persistent {
		t.Errorf("adopted %+v, %v", got, err)
	}
	if res, err := second.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 3"})); err != nil || *res.ExitCode != 3 {
		t.Errorf("exec: %+v, %v", res, err)
	}
	if err := second.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	w.nothingLeft(second)
}

// The lifetime begins when a sandbox runs: neither the time of its creation nor a restart of the daemon
// shortens it.
func TestLifetimeBeginsWithRunning(t *testing.T) {
	w := newFixture(t)
	var made time.Time
	w.trap = func(_ context.Context, point string) error {
		if point == "before record" {
			made = time.Now()
		}
		return nil
	}
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Limits: api.Limits{LifetimeMS: 3_600_000}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if sb.ExpiresAt == nil || sb.ExpiresAt.Before(made.Add(time.Hour).Truncate(time.Microsecond)) || !sb.CreatedAt.Before(made) {
		t.Errorf("created %s, complete %s, expires %s", sb.CreatedAt, made, sb.ExpiresAt)
	}
	sandbox.Crash(m)
	got, err := w.manager(false).Get(operator, "x")
	if err != nil || got.ExpiresAt == nil || !got.ExpiresAt.Equal(*sb.ExpiresAt) {
		t.Errorf("after a restart it expires %v, %v; want %s", got.ExpiresAt, err, sb.ExpiresAt)
	}
}

// noGoroutinesLeft compares, when the test and its parts have ended.
func noGoroutinesLeft(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		for runtime.NumGoroutine() > before {
			select {
			case <-ctx.Done():
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines before and %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// usage is what a process can leak.
type usage struct {
	goroutines, fds int
	heap            uint64
}

func used(t *testing.T) usage {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return usage{runtime.NumGoroutine(), len(open), s.HeapAlloc}
}

// heapNoise is what the runtime itself may have more of at one moment.
const heapNoise = 128 << 10

func TestCyclesLeakNothing(t *testing.T) {
	longtest.Skip(t, "it makes many sandboxes")
	cycles := 1000
	if testing.Short() {
		cycles = 50
	}
	w := newFixture(t)
	w.log = io.Discard // a test keeps what is logged to it
	m := w.manager(false)
	cycle := func() {
		sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Limits: api.Limits{IdleMS: 3_600_000}}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		cycle() // what is made once is made now
	}
	w.forgetEvents()
	before := used(t)
	for range cycles {
		cycle()
	}
	w.nothingLeft(m)
	w.forgetEvents()
	var after usage
	eventually(t, "all goroutines and descriptors are gone", func() bool {
		after = used(t)
		return after.goroutines <= before.goroutines && after.fds <= before.fds
	})
	t.Logf("%d cycles: %+v before, %+v after", cycles, before, after)
	// What is known of the last ten thousand removed ones stays, a kilobyte each.
	if after.heap > before.heap+uint64(cycles)*1250+heapNoise {
		t.Errorf("the heap has grown by %d bytes a cycle", (after.heap-before.heap)/uint64(cycles))
	}
}

//go:build linux

package sandbox_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	if os.Args[0] == fdstore.Argv0 {
		os.Exit(fdstore.Main())
	}
	os.Exit(m.Run())
}

var operator = policy.InProcessCaller(os.Geteuid())

// testRules are the ones that only a test can have: they let it choose an engine
// that isolates nothing.
var testRules = rules.Rules{Engine: fake.Name, MinTier: api.TierNone}

// fixture is one home on one imaginary machine. Managers come and go in it, as
// daemons do.
type fixture struct {
	used    []usedBy // guarded by mu: what was told of ended sandboxes
	t       testing.TB
	dir     string
	machine *fake.Machine
	images  *image.Store
	spaces  *workspace.Store
	snaps   *snapshot.Store
	lost    chan api.Sandbox
	// trap is set in the Managers that are made from then on.
	trap func(ctx context.Context, point string) error
	// log is where they log to, and a nil one is the test's output.
	log io.Writer
	// retention and admission are theirs too.
	suspended  retention.Suspended
	maySuspend func(tenant string, bytes int64) error
	retention  retention.Rule
	admission  policy.Admission
	// held: a holder keeps their links over a restart.
	held bool
	// ways are the latest Manager's.
	networks *network.Networks

	mu     sync.Mutex
	events []api.Event
	// latest is the latest Manager, and resumedBy are the callers as which it resumed sandboxes that were used.
	latest    *sandbox.Manager
	resumedBy []policy.Caller
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"images", "workspaces", "owner"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w := &fixture{t: t, dir: dir, machine: fake.NewMachine(""), lost: make(chan api.Sandbox, 16)}
	var err error
	if w.images, err = image.Open(filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	if w.spaces, err = workspace.Open(dir); err != nil {
		t.Fatal(err)
	}
	if w.snaps, err = snapshot.Open(snapshot.Options{Home: dir, RemoveTree: workspace.RemoveTree}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.machine.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return w
}

// manager starts a daemon's Manager, which the test's end closes.
func (w *fixture) manager(ephemeral bool) *sandbox.Manager {
	w.t.Helper()
	m := w.newManager(ephemeral)
	w.t.Cleanup(func() { _ = m.Close(context.WithoutCancel(w.t.Context())) })
	if err := m.Recover(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *fixture) newManager(ephemeral bool) *sandbox.Manager {
	logger := slog.New(slog.NewTextHandler(cmp.Or(w.log, w.t.Output()), &slog.HandlerOptions{Level: slog.LevelDebug}))
	networks := network.Options{Logger: logger}
	if w.held {
		networks.Store = fdstore.NewClient(fdstore.Options{Dir: filepath.Join(w.dir, "owner"), Logger: logger})
	}
	w.networks = network.New(w.t.Context(), networks)
	own := w.networks
	w.t.Cleanup(func() {
		if err := own.Close(); err != nil {
			w.t.Error(err)
		}
	})
	recordings, err := recording.Open(filepath.Join(w.dir, "recordings"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { recordings.Close() })
	m := sandbox.New(sandbox.Options{
		Networks: w.networks, Recordings: recordings,
		Dir: filepath.Join(w.dir, "owner"), Owner: "owner", Ephemeral: ephemeral,
		Engines: []engine.Engine{w.machine.Engine()}, Images: w.images, Workspaces: w.spaces, Snapshots: w.snaps,
		AgentImage: func(context.Context) (string, error) { return "/dev/null", nil },
		Logger:     logger,
		Ended:      func(sb api.Sandbox) { w.lost <- sb },
		Retention:  w.retention,
		Suspended:  w.suspended,
		MaySuspend: w.maySuspend,
		Admission:  w.admission,
		Resume: func(ctx context.Context, creator policy.Caller, sb api.Sandbox) error {
			w.mu.Lock()
			w.resumedBy = append(w.resumedBy, creator)
			m := w.latest
			w.mu.Unlock()
			_, spec, err := m.SuspendedSpec(ctx, creator, sb.ID)
			if err != nil || spec == nil {
				return err
			}
			_, err = m.ResumeSuspended(ctx, creator, sb.ID, sandbox.StartOptions{Permit: w.permit(*spec)})
			return err
		},
		Used: func(sb api.Sandbox, u api.AuditUsed) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.used = append(w.used, usedBy{sb, u})
		},
		Events: func(e api.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	})
	w.mu.Lock()
	w.latest = m
	w.mu.Unlock()
	trap := w.trap
	sandbox.SetTrap(m, func(ctx context.Context, point string) error {
		if err := sandbox.Check(m); err != nil {
			w.t.Errorf("%s: %v", point, err)
		}
		if trap == nil {
			return nil
		}
		return trap(ctx, point)
	})
	sandbox.SetPace(m, 5*time.Millisecond, 50*time.Millisecond, 3)
	return m
}

// forgetEvents drops what was kept for the test's own sake.
func (w *fixture) forgetEvents() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events, w.used = nil, nil
}

// kinds are the events of sandboxes so far, without their processes'.
func (w *fixture) kinds() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var kinds []string
	for _, e := range w.events {
		if k, ok := strings.CutPrefix(string(e.Kind), "sandbox."); ok {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// permit asks policy, as core does. Limits that the imaginary machine cannot
// enforce are defaults, so they are only reported.
func (w *fixture) permit(spec api.SandboxSpec) policy.Permit {
	w.t.Helper()
	reports := []api.EngineReport{w.machine.Engine().Probe(w.t.Context())}
	facts := policy.Facts{Engines: reports, Home: w.dir, HardQuota: workspace.HardQuota(w.dir)}
	if spec.Workspace != nil {
		if info, err := w.spaces.Get(operator.Tenant, spec.Workspace.Name); err == nil {
			facts.Workspace = &info
		}
	}
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts, Connected: spec.Transient}, operator, testRules)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *fixture) create(m *sandbox.Manager, name string) api.Sandbox {
	w.t.Helper()
	sb, err := m.Create(w.t.Context(), w.permit(api.SandboxSpec{Name: name}), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

func permitExec(t *testing.T, sb api.Sandbox, req api.ExecRequest) policy.ExecPermit {
	t.Helper()
	if req.Cwd == "" {
		req.Cwd = "/" // the imaginary machine has no workspace at its path
	}
	p, err := policy.DecideExec(req, policy.SettingsOf(sb), operator, testRules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nothingLeft fails when a sandbox's directory or instance is still there.
func (w *fixture) nothingLeft(m *sandbox.Manager) {
	w.t.Helper()
	if list := m.List(operator, api.ListOptions{}); len(list.Sandboxes) != 0 {
		w.t.Errorf("sandboxes are listed: %v", list.Sandboxes)
	}
	left, err := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	for _, e := range left {
		w.t.Errorf("%s is left", e.Name())
	}
	if left := w.machine.Left(); len(left) != 0 {
		w.t.Errorf("instances are left: %v", left)
	}
	w.nobodyHasAWorkspace()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		if strings.Contains(line, w.dir+"/") {
			w.t.Errorf("a mount is left: %s", line)
		}
	}
}

// eventually waits for what happens in the background.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("it never came about that %s", what)
		case <-tick.C:
		}
	}
}

func states(m *sandbox.Manager) []api.State {
	var out []api.State
	for _, sb := range m.List(operator, api.ListOptions{}).Sandboxes {
		out = append(out, sb.State)
	}
	slices.Sort(out)
	return out
}

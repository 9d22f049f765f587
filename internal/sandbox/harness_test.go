//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	os.Exit(m.Run())
}

var operator = policy.InProcessCaller(os.Geteuid())

// rules are the ones that only a test can have: they let it choose an engine
// that isolates nothing.
var rules = policy.Rules{Engine: fake.Name, MinTier: cloche.TierNone}

// world is one home on one imaginary machine. Managers come and go in it, as
// daemons do.
type world struct {
	t       *testing.T
	dir     string
	machine *fake.Machine
	images  *image.Store
	spaces  *workspace.Store
	lost    chan cloche.Sandbox
}

func newWorld(t *testing.T) *world {
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
	w := &world{t: t, dir: dir, machine: fake.NewMachine(""), lost: make(chan cloche.Sandbox, 16)}
	var err error
	if w.images, err = image.Open(filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	if w.spaces, err = workspace.Open(dir); err != nil {
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
func (w *world) manager(ephemeral bool) *sandbox.Manager {
	w.t.Helper()
	m := sandbox.New(sandbox.Options{
		Dir: filepath.Join(w.dir, "owner"), Owner: "owner", Ephemeral: ephemeral,
		Engines: []engine.Engine{w.machine.Engine()}, Images: w.images, Workspaces: w.spaces,
		AgentImage: func(context.Context) (string, error) { return "/dev/null", nil },
		Logger:     slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Ended:      func(sb cloche.Sandbox) { w.lost <- sb },
	})
	w.t.Cleanup(func() { _ = m.Close(context.WithoutCancel(w.t.Context())) })
	if err := m.Recover(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// permit asks policy, as core does. Limits that the imaginary machine cannot
// enforce are defaults, so they are only reported.
func (w *world) permit(spec cloche.SandboxSpec) policy.Permit {
	w.t.Helper()
	reports := []cloche.EngineReport{w.machine.Engine().Probe(w.t.Context())}
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: policy.Facts{Engines: reports, Home: w.dir}}, operator, rules)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) create(m *sandbox.Manager, name string) cloche.Sandbox {
	w.t.Helper()
	sb, err := m.Create(w.t.Context(), w.permit(cloche.SandboxSpec{Name: name}), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

func permitExec(t *testing.T, sb cloche.Sandbox, req cloche.ExecRequest) policy.ExecPermit {
	t.Helper()
	if req.Cwd == "" {
		req.Cwd = "/" // the imaginary machine has no workspace at its path
	}
	p, err := policy.DecideExec(req, policy.SettingsOf(sb), operator, rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nothingLeft fails when a sandbox's directory or instance is still there.
func (w *world) nothingLeft(m *sandbox.Manager) {
	w.t.Helper()
	if list := m.List(operator, cloche.ListOptions{}); len(list.Sandboxes) != 0 {
		w.t.Errorf("sandboxes are listed: %v", list.Sandboxes)
	}
	left, err := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	for _, e := range left {
		w.t.Errorf("%s is left", e.Name())
	}
	if err := w.machine.Engine().Sweep(w.t.Context(), "nobody", nil); err != nil {
		w.t.Error(err)
	}
}

// eventually waits for what happens in the background.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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

func states(m *sandbox.Manager) []cloche.State {
	var out []cloche.State
	for _, sb := range m.List(operator, cloche.ListOptions{}).Sandboxes {
		out = append(out, sb.State)
	}
	slices.Sort(out)
	return out
}

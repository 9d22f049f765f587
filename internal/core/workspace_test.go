//go:build linux

package core_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/job"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/skill"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	os.Exit(m.Run())
}

var operator = core.InProcessCaller(os.Geteuid())

// fixture is a Service over an imaginary machine.
type fixture struct {
	*core.Service
	machine *fake.Machine
	dir     string
	// approvals is the queue of the fixture.
	approvals *approval.Queue
	log       *audit.Log
	rules     rules.Rules
	// full is what the home has run out of.
	full string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOf(t, "")
}

// newFixtureOf is a fixture that finds these jobs. Empty is no job.
func newFixtureOf(t *testing.T, jobs string) *fixture {
	t.Helper()
	h := &fixture{machine: fake.NewMachine(""), dir: t.TempDir(), approvals: approval.New(nil)}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Chmod(h.dir, 0o700))
	for _, sub := range []string{"images", "owner"} {
		check(os.Mkdir(filepath.Join(h.dir, sub), 0o700))
	}
	images, err := image.Open(filepath.Join(h.dir, "images"))
	check(err)
	spaces, err := workspace.Open(h.dir)
	check(err)
	snaps, err := snapshot.Open(snapshot.Options{Home: h.dir, RemoveTree: workspace.RemoveTree})
	check(err)
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	log, err := audit.Open(audit.Options{Home: h.dir, Logger: logger})
	check(err)
	h.log = log
	engines := []engine.Engine{h.machine.Engine()}
	networks := network.New(t.Context(), network.Options{Logger: logger})
	m := sandbox.New(sandbox.Options{
		Dir: filepath.Join(h.dir, "owner"), Owner: "owner", Engines: engines, Images: images, Workspaces: spaces, Snapshots: snaps,
		AgentImage: imageOfNothing, Logger: logger, Events: func(api.Event) {}, Networks: networks, Ask: h.approvals.Ask,
	})
	check(m.Recover(t.Context()))
	keys, err := key.Open(context.Background(), h.dir)
	check(err)
	kept, err := job.Open(job.Options{Dir: cmp.Or(jobs, filepath.Join(h.dir, "jobs"))})
	check(err)
	h.rules = rules.Rules{Engine: fake.Name, MinTier: api.TierNone}
	h.Service = core.New(core.Options{
		Keys: keys, Approvals: h.approvals, Jobs: kept,
		Rules:     h.rules,
		HomeFull:  func(string) string { return h.full },
		Sandboxes: m, Images: images, Workspaces: spaces, Snapshots: snaps, Audit: log, Prober: core.NewProber(engines), Logger: logger, Home: h.dir,
		Skills: skill.Open(filepath.Join(h.dir, "skills")), Redactor: canary{},
		PortOrigin: func(_ context.Context, sandbox string, port int) (string, error) {
			return fmt.Sprintf("http://%d-%s.localhost", port, sandbox), nil
		},
	})
	t.Cleanup(func() {
		h.machine.SetFaults(fake.Faults{})
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(h.CloseJobs(ctx), kept.Close(), m.Close(ctx), networks.Close(), h.machine.Close(ctx), log.Close(), keys.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// canary knows one secret value.
type canary struct{}

const secretValue = "hunter2-canary"

func (canary) Redact(s string) string { return strings.ReplaceAll(s, secretValue, "[secret]") }

func imageOfNothing(context.Context) (string, error) { return "/dev/null", nil }

// measuredBox is a sandbox whose workspace is a directory with a measured bound
// of 1 MiB. On the imaginary machine it is seen at its own path.
func (h *fixture) measuredBox(t *testing.T) (sb api.Sandbox, dir string) {
	t.Helper()
	dir = t.TempDir()
	sb, err := h.Create(t.Context(), operator, api.SandboxSpec{
		Name: "box", Workspace: &api.Workspace{Dir: dir, SizeBytes: 1 << 20, Quota: api.QuotaMeasured},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Workspace.Enforced != api.HeldByMeasure {
		t.Errorf("enforced by %q", sb.Workspace.Enforced)
	}
	return sb, dir
}

func (h *fixture) sh(t *testing.T, script string) (api.Result, error) {
	t.Helper()
	return h.Exec(t.Context(), operator, "box", api.ExecRequest{Argv: []string{"/bin/sh", "-c", script}, Cwd: "/"})
}

func (h *fixture) gone(t *testing.T) bool {
	t.Helper()
	_, err := h.Get(t.Context(), operator, "box")
	return errors.Is(err, api.ErrNotFound)
}

// over wants the error of a quota in a phase.
func over(t *testing.T, err error, phase api.QuotaPhase, used int64) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	want := api.QuotaExcess{Phase: phase, Unit: api.QuotaBytes, Used: used, Limit: 1 << 20}
	if !ok || e.Code != api.CodeQuota || e.Quota == nil || *e.Quota != want {
		t.Errorf("%v (%+v), want %+v", err, e, want)
	}
}

func TestMeasuredBefore(t *testing.T) {
	h := newFixture(t)
	_, dir := h.measuredBox(t)
	if _, err := h.sh(t, "head -c 1048576 /dev/zero > "+dir+"/f"); err != nil {
		t.Fatalf("as much as it may hold: %v", err)
	}
	// Another process writes to the directory.
	if err := os.WriteFile(filepath.Join(dir, "g"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := h.sh(t, "touch "+dir+"/ran")
	over(t, err, api.QuotaBefore, 1<<20+1)
	_, err = h.StartProcess(t.Context(), operator, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"/bin/touch", dir + "/ran"}, Cwd: "/"}})
	over(t, err, api.QuotaBefore, 1<<20+1)
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("it ran")
	}
	if h.gone(t) {
		t.Error("a sandbox was removed that ran nothing")
	}
}

// The sandbox goes also when its end fails at first, and who asked hears of the
// quota and not of that.
func TestMeasuredAfter(t *testing.T) {
	longtest.Skip(t, "it waits for retries of a teardown")
	for _, fails := range []bool{false, true} {
		h := newFixture(t)
		_, dir := h.measuredBox(t)
		if fails {
			h.machine.SetFaults(fake.Faults{Close: errors.New("no close")})
		}
		res, err := h.sh(t, "echo said; head -c 1048577 /dev/zero > "+dir+"/f")
		over(t, err, api.QuotaAfter, 1<<20+1)
		if !strings.Contains(string(res.Stdout), "said") {
			t.Errorf("what it said is lost: %q", res.Stdout)
		}
		if gone := h.gone(t); gone == fails {
			t.Errorf("its end fails: %v; it is gone: %v", fails, gone)
		}
		h.machine.SetFaults(fake.Faults{})
		eventually(t, "it is gone", func() bool { return h.gone(t) })
	}
}

func TestMeasuredAfterAProcess(t *testing.T) {
	h := newFixture(t)
	_, dir := h.measuredBox(t)
	start := func(script string) api.Process {
		t.Helper()
		p, err := h.StartProcess(t.Context(), operator, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"/bin/sh", "-c", script}, Cwd: "/"}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start("head -c 1048576 /dev/zero > " + dir + "/f")
	if p, err := h.WaitProcess(t.Context(), operator, "box", p.ExecID, api.WaitRequest{}); err != nil || !p.State.Ended() {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := h.sh(t, "true"); err != nil {
		t.Fatalf("as much as it may hold: %v", err)
	}
	start("echo >> " + dir + "/f")
	eventually(t, "it is gone", func() bool { return h.gone(t) })
}

// One tenant's workspaces are not there for another, in the words of what is
// missing, and only the operator sees both.
func TestWorkspacesOfTenants(t *testing.T) {
	h := newFixture(t)
	alice, bob := core.UnixCaller(1001, 0), core.UnixCaller(1002, 0)
	if _, err := h.CreateWorkspace(t.Context(), alice, api.WorkspaceSpec{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	_, foreign := h.GetWorkspace(t.Context(), bob, alice.Tenant, "data")
	_, missing := h.GetWorkspace(t.Context(), bob, "", "data")
	if foreign == nil || missing == nil || foreign.Error() != missing.Error() || !errors.Is(foreign, api.ErrNotFound) {
		t.Errorf("foreign: %v; missing: %v", foreign, missing)
	}
	if err := h.RemoveWorkspace(t.Context(), bob, alice.Tenant, "data"); err == nil || err.Error() != missing.Error() {
		t.Errorf("a foreign removal: %v", err)
	}
	for caller, want := range map[core.Caller]int{alice: 1, bob: 0, operator: 1} {
		if l, err := h.Workspaces(t.Context(), caller); err != nil || len(l.Workspaces) != want {
			t.Errorf("%s sees %+v, %v; want %d", caller.Tenant, l, err, want)
		}
	}
	// A name is its tenant's.
	if _, err := h.CreateWorkspace(t.Context(), bob, api.WorkspaceSpec{Name: "data"}); err != nil {
		t.Error(err)
	}
	if err := h.RemoveWorkspace(t.Context(), operator, alice.Tenant, "data"); err != nil {
		t.Error(err)
	}
	if _, err := h.GetWorkspace(t.Context(), bob, "", "data"); err != nil {
		t.Errorf("another's of that name went with it: %v", err)
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

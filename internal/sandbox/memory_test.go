//go:build linux

package sandbox_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
)

// remember makes a snapshot with memory, as core does.
func (w *fixture) remember(m *sandbox.Manager, ref, name string) (api.Snapshot, error) {
	w.t.Helper()
	permit := permitSnapshot(w.t, api.SnapshotRequest{Name: name, Scope: api.SnapshotMemory})
	return m.SnapshotMemory(w.t.Context(), operator, ref, permit)
}

// recall creates a sandbox from a snapshot with memory, as core does.
func (w *fixture) recall(m *sandbox.Manager, snap api.Snapshot, asked api.SandboxSpec) (api.Sandbox, error) {
	w.t.Helper()
	_, whole, grant, err := m.MemorySpec(snap)
	if err != nil {
		return api.Sandbox{}, err
	}
	asked.Snapshot = snap.Name
	spec, err := template.Complete(asked, whole)
	if err != nil {
		w.t.Fatal(err)
	}
	permit, err := policy.Decide(policy.Request{Spec: spec, Facts: policy.Facts{
		Engines: []api.EngineReport{w.machine.Engine().Probe(w.t.Context())}, Home: w.dir, Snapshot: &snap,
	}}, operator, testRules)
	if err != nil {
		w.t.Fatal(err)
	}
	return m.CreateFromMemory(w.t.Context(), sandbox.StartOptions{Permit: permit, Egress: grant}, nil)
}

// TestSnapshotMemory: sandboxes that start from a snapshot with memory continue its processes, with an identity of their own, also
// when the sandbox that it was made of is gone, and under a later daemon.
func TestSnapshotMemory(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		w := newFixture(t)
		m := w.manager(false)
		sb := w.create(m, "box")
		w.write(w.inWorkspace(sb, "file"), "kept")
		if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("count", "echo line 1; sleep 600"))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "output", func() bool { return output(t, m, sb, api.LogOptions{ExecID: "count"}) != "" })
		if suspended {
			if _, err := m.Suspend(t.Context(), operator, "box"); err != nil {
				t.Fatal(err)
			}
		}
		snap, err := w.remember(m, "box", "ready")
		if err != nil {
			t.Fatal(err)
		}
		if snap.Scope != api.SnapshotMemory || snap.Sandbox != sb.ID || snap.WorkspaceBytes != 4 || snap.MemoryBytes <= 0 || snap.MemorySum == "" || !snap.Consistent ||
			snap.SizeBytes != snap.MemoryBytes+4 {
			t.Errorf("the snapshot is %+v", snap)
		}
		if got, want := w.stateOf(m), map[bool]api.State{false: api.StateRunning, true: api.StateSuspended}[suspended]; got != want {
			t.Errorf("the sandbox is %s, want %s", got, want)
		}
		parentToken := string(w.saved(sb.ID).AgentToken)
		first, err := w.recall(m, snap, api.SandboxSpec{Name: "first", Env: map[string]string{"ADDED": "1"}})
		if err != nil {
			t.Fatal(err)
		}
		w.write(w.inWorkspace(first, "file"), "changed")
		if err := m.Remove(t.Context(), operator, "box"); err != nil {
			t.Fatal(err)
		}
		m = w.restart(m)
		second, err := w.recall(m, snap, api.SandboxSpec{Name: "second", Labels: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []api.Sandbox{first, second} {
			w.runs(t, m, c.Name)
			token := string(w.saved(c.ID).AgentToken)
			if c.Snapshot != snap.ID || c.ForkedFrom != sb.ID || token == "" || token == parentToken {
				t.Errorf("the sandbox is %+v", c)
			}
			if got := output(t, m, c, api.LogOptions{ExecID: "count"}); got != "line 1\n" {
				t.Errorf("its log has %q", got)
			}
		}
		if first.Env["ADDED"] != "1" || second.Env["ADDED"] != "" || second.Labels["a"] != "b" {
			t.Errorf("%+v and %+v", first, second)
		}
		if got := w.read(w.inWorkspace(second, "file")); got != "kept" {
			t.Errorf("the second workspace has %q", got)
		}
		for _, name := range []string{"first", "second"} {
			if err := m.Remove(t.Context(), operator, name); err != nil {
				t.Error(err)
			}
		}
		w.nothingLeft(m)
	}
}

// TestSnapshotMemoryFails: nothing is left of a snapshot that fails at any step, and the sandbox runs.
func TestSnapshotMemoryFails(t *testing.T) {
	w := newFixture(t)
	var point string
	w.failAt(&point)
	m := w.manager(false)
	w.create(m, "box")
	for _, point = range []string{"before hold", "before suspend", "after suspend", "before snapshot"} {
		if _, err := w.remember(m, "box", "s"); err == nil {
			t.Errorf("%s: the snapshot was made", point)
		}
		if left := w.kept(); len(left) != 0 {
			t.Errorf("%s: left are %v", point, left)
		}
		w.runs(t, m, "box")
	}
	point = ""
	permit, err := policy.DecideSnapshot(api.SnapshotRequest{Scope: api.SnapshotMemory}, policy.SnapshotFacts{Bytes: 32<<30 - 1}, testRules)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.SnapshotMemory(t.Context(), operator, "box", permit); code(err) != api.CodeNoCapacity {
		t.Errorf("one that is too large: %v", err)
	}
	if _, err := m.SnapshotMemory(t.Context(), operator, "box", policy.SnapshotPermit{}); code(err) != api.CodeDenied {
		t.Errorf("without a permit: %v", err)
	}
	other := policy.Caller{Tenant: "other"}
	if _, err := m.SnapshotMemory(t.Context(), other, "box", permit); code(err) != api.CodeNotFound {
		t.Errorf("another tenant: %v", err)
	}
	if left := w.kept(); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	snap, err := w.remember(m, "box", "s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.remember(m, "box", "s"); code(err) != api.CodeExists {
		t.Errorf("a second one of that name: %v", err)
	}
	for _, step := range []string{"directory", "state", "workspace", "engine", "renew", "record"} {
		for _, point = range []string{"before " + step, "after " + step} {
			if _, err := w.recall(m, snap, api.SandboxSpec{Name: "next"}); err == nil {
				t.Errorf("%s: it was created", point)
			}
			if left, err := filepath.Glob(filepath.Join(w.sandboxes(), "*")); err != nil || len(left) != 1 || len(w.kept()) != 1 {
				t.Errorf("%s: left are %v and %v, %v", point, left, w.kept(), err)
			}
		}
	}
	point = ""
	// No create holds the snapshot any more.
	if err := w.snaps.Remove(policy.LocalTenant, snap.ID); err != nil {
		t.Error(err)
	}
	w.runs(t, m, "box")
}

// TestSnapshotMemoryDamaged: a memory that is not the one of the snapshot's record is not executed.
func TestSnapshotMemoryDamaged(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "box")
	dir := func(snap api.Snapshot) string {
		return filepath.Join(w.dir, "snapshots", policy.LocalTenant, snap.ID, "template")
	}
	for name, damage := range map[string]func(snap api.Snapshot) error{
		"no record": func(snap api.Snapshot) error { return os.Remove(filepath.Join(dir(snap), "sandbox.json")) },
		"another sum": func(snap api.Snapshot) error {
			file := filepath.Join(dir(snap), "..", "snapshot.json")
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return os.WriteFile(file, []byte(strings.Replace(string(data), snap.MemorySum, strings.Repeat("0", 64), 1)), 0o600)
		},
		"record of another": func(snap api.Snapshot) error {
			file := filepath.Join(dir(snap), "sandbox.json")
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return os.WriteFile(file, []byte(strings.ReplaceAll(string(data), snap.Sandbox, "sb-0000000000000000")), 0o600)
		},
	} {
		snap, err := w.remember(m, "box", strings.ReplaceAll(name, " ", "-"))
		if err != nil {
			t.Fatal(err)
		}
		if err := damage(snap); err != nil {
			t.Fatal(err)
		}
		list, err := w.snaps.List(func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		now := list[slices.IndexFunc(list, func(s api.Snapshot) bool { return s.ID == snap.ID })]
		if _, err := w.recall(m, now, api.SandboxSpec{Name: "next"}); code(err) != api.CodeState || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.runs(t, m, "box")
}

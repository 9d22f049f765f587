//go:build linux

package sandbox_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// inWorkspace is where the host has a file of a private workspace.
func (w *fixture) inWorkspace(sb api.Sandbox, name string) string {
	return filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "workspace", name)
}

func (w *fixture) write(path, text string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) read(path string) string {
	w.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		w.t.Error(err)
	}
	return string(b)
}

// permitSnapshot asks policy, as core does.
func permitSnapshot(t testing.TB, req api.SnapshotRequest) policy.SnapshotPermit {
	t.Helper()
	p, err := policy.DecideSnapshot(req, policy.SnapshotFacts{}, testRules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// kept are the snapshots on disk, with those that are not complete.
func (w *fixture) kept() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "snapshots", policy.LocalTenant))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// rootTar is a layer of a root with one file.
func rootTar(t *testing.T, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, {Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o644, Size: int64(len(text))}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnapshotAndBack: the sandbox is paused while its files are copied, runs on
// afterwards, and another begins with copies of them.
func TestSnapshotAndBack(t *testing.T) {
	w := newFixture(t)
	root := rootTar(t, "added", "in the root")
	w.machine.SetFaults(fake.Faults{Root: root})
	var during []api.State
	var m *sandbox.Manager
	w.trap = func(_ context.Context, point string) error {
		if point == "copying" {
			during = append(during, states(m)...)
		}
		return nil
	}
	m = w.manager(false)
	sb := w.create(m, "x")
	w.write(w.inWorkspace(sb, "d/f"), "content")
	w.forgetEvents()
	snap, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Name: "s", Labels: map[string]string{"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(during, []api.State{api.StatePaused}) || states(m)[0] != api.StateRunning {
		t.Errorf("while its files were copied it was %v, and then %v", during, states(m))
	}
	if got := w.kinds(); !slices.Equal(got, []string{"paused", "resumed"}) {
		t.Errorf("the events were %v", got)
	}
	if !snap.Consistent || snap.Scope != api.SnapshotFiles || snap.RootBytes != int64(len(root)) || snap.WorkspaceBytes != 7 ||
		snap.SizeBytes != snap.RootBytes+7 || snap.Sandbox != sb.ID || snap.ImageDigest != sb.ImageDigest || snap.Labels["a"] != "b" {
		t.Errorf("the record is %+v", snap)
	}
	w.write(w.inWorkspace(sb, "d/f"), "changed since")
	permit, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Name: "y", Snapshot: "s"}, Facts: policy.Facts{
		Engines: []api.EngineReport{w.machine.Engine().Probe(t.Context())}, Home: w.dir, Snapshot: &snap,
	}}, operator, testRules)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Create(t.Context(), permit, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again.Snapshot != snap.ID || w.read(w.inWorkspace(again, "d/f")) != "content" {
		t.Errorf("what began with the snapshot is %+v", again)
	}
	plans := w.machine.Plans()
	if got := w.read(plans[len(plans)-1].Root.Upper); got != string(root) {
		t.Errorf("its root begins with %q", got)
	}
	for _, ref := range []string{"x", "y"} {
		if err := m.Remove(t.Context(), operator, ref); err != nil {
			t.Error(err)
		}
	}
	w.nothingLeft(m)
}

// TestSnapshotOverAnotherImage: the root of the host image lies over the machine as it is
// now, and the root of any other image over no other digest.
func TestSnapshotOverAnotherImage(t *testing.T) {
	w := newFixture(t)
	w.machine.SetFaults(fake.Faults{Root: rootTar(t, "added", "in the root")})
	m := w.manager(false)
	w.create(m, "x")
	snap, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Name: "s"}))
	if err != nil {
		t.Fatal(err)
	}
	snap.ImageDigest = "sha256:" + strings.Repeat("0", 64) // as it was before an update
	for image, code := range map[string]api.Code{"host": "", "debian:12": api.CodeState} {
		snap.Image = image
		permit, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Image: "host", Snapshot: "s"}, Facts: policy.Facts{
			Engines: []api.EngineReport{w.machine.Engine().Probe(t.Context())}, Home: w.dir, Snapshot: &snap,
		}}, operator, testRules)
		if err != nil {
			t.Fatal(err)
		}
		sb, err := m.Create(t.Context(), permit, nil)
		if api.CodeOf(err) != code {
			t.Errorf("a snapshot of %s over another host image: %v", image, err)
		}
		if err != nil {
			continue
		}
		if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
			t.Error(err)
		}
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	w.nothingLeft(m)
}

// TestSnapshotOfOthers: of a sandbox that has ended there is the workspace, and of a
// paused one as well.
func TestSnapshotOfOthers(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	w.write(w.inWorkspace(sb, "f"), "content")
	if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{})); api.CodeOf(err) != api.CodeState {
		t.Errorf("the root of a paused sandbox: %v", err)
	}
	workspaceOnly := permitSnapshot(t, api.SnapshotRequest{Scope: api.SnapshotWorkspace})
	if snap, err := m.Snapshot(t.Context(), operator, "x", workspaceOnly); err != nil || !snap.Consistent {
		t.Errorf("the workspace of a paused sandbox: %+v, %v", snap, err)
	}
	if got := states(m)[0]; got != api.StatePaused {
		t.Errorf("after that it is %s", got)
	}
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	snap, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{}))
	if err != nil || snap.Scope != api.SnapshotWorkspace || !snap.Consistent || len(snap.Left) != 1 || snap.Left[0].Path != "/" {
		t.Errorf("of a sandbox that has ended: %+v, %v", snap, err)
	}
	for _, scope := range []api.SnapshotScope{api.SnapshotRoot, api.SnapshotFiles} {
		if _, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Scope: scope})); api.CodeOf(err) != api.CodeState {
			t.Errorf("the %s of a sandbox that has ended: %v", scope, err)
		}
	}
	if got := len(w.kept()); got != 2 {
		t.Errorf("%d snapshots are kept, want 2", got)
	}
	if _, err := m.Snapshot(t.Context(), operator, "x", policy.SnapshotPermit{}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("without a permit: %v", err)
	}
}

// TestFaultsOfASnapshot: what fails leaves nothing behind, and the sandbox runs.
func TestFaultsOfASnapshot(t *testing.T) {
	var point string
	w := newFixture(t)
	w.trap = func(_ context.Context, p string) error {
		if p == point {
			return errWanted
		}
		return nil
	}
	m := w.manager(false)
	sb := w.create(m, "x")
	w.write(w.inWorkspace(sb, "f"), "content")
	for _, scope := range []api.SnapshotScope{api.SnapshotFiles, api.SnapshotWorkspace} {
		for _, point = range []string{"before hold", "before pause", "after pause", "copying", "before snapshot"} {
			if _, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Scope: scope})); err == nil {
				t.Errorf("%s with a fault at %q succeeded", scope, point)
			}
			if got := states(m)[0]; got != api.StateRunning {
				t.Errorf("%s with a fault at %q leaves the sandbox %s", scope, point, got)
			}
			if got := w.kept(); len(got) != 0 {
				t.Errorf("%s with a fault at %q leaves %v", scope, point, got)
			}
		}
	}
	point = ""
	for _, step := range []fake.Step{fake.StepRoot, fake.StepPause} {
		w.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{step: errWanted}})
		if _, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{})); err == nil {
			t.Errorf("with a fault of the engine at %s it succeeded", step)
		}
		w.machine.SetFaults(fake.Faults{})
		if res, err := m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4"})); err != nil || *res.ExitCode != 4 {
			t.Errorf("exec after a fault at %s: %+v, %v", step, res, err)
		}
	}
	if got := w.kept(); len(got) != 0 {
		t.Errorf("%v is left", got)
	}
	small, err := policy.DecideSnapshot(api.SnapshotRequest{}, policy.SnapshotFacts{}, rules.Rules{MaxSnapshotBytesPerTenant: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Snapshot(t.Context(), operator, "x", small); api.CodeOf(err) != api.CodeTooLarge && api.CodeOf(err) != api.CodeNoCapacity {
		t.Errorf("a snapshot that is too large: %v", err)
	}
}

// TestEndsDuringASnapshot: a kill does not wait for a copy.
func TestEndsDuringASnapshot(t *testing.T) {
	for _, how := range []string{"kill", "stop", "rm"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t)
			reached := make(chan struct{})
			w.trap = func(ctx context.Context, point string) error {
				if point == "copying" {
					close(reached)
					<-ctx.Done() // as a long copy does
					return ctx.Err()
				}
				return nil
			}
			m := w.manager(false)
			w.create(m, "x")
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := m.Snapshot(context.WithoutCancel(t.Context()), operator, "x", permitSnapshot(t, api.SnapshotRequest{}))
				if api.CodeOf(err) != api.CodeCanceled {
					t.Errorf("the snapshot came to %v", err)
				}
			})
			<-reached
			var err error
			switch how {
			case "kill":
				_, err = m.Kill(t.Context(), operator, "x")
			case "stop":
				_, err = m.Stop(t.Context(), operator, "x", nil)
			case "rm":
				err = m.Remove(t.Context(), operator, "x")
			}
			if err != nil {
				t.Error(err)
			}
			wg.Wait()
			if got := w.kept(); len(got) != 0 {
				t.Errorf("%v is left", got)
			}
		})
	}
}

// TestSnapshotAndTheNextDaemon: a sandbox in whose snapshot the daemon was killed
// runs.
func TestSnapshotAndTheNextDaemon(t *testing.T) {
	for _, scope := range []api.SnapshotScope{api.SnapshotFiles, api.SnapshotWorkspace} {
		t.Run(string(scope), func(t *testing.T) {
			w := newFixture(t)
			reached, free := w.trapAt("copying")
			first := w.manager(false)
			sb := w.create(first, "x")
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = first.Snapshot(context.WithoutCancel(t.Context()), operator, "x", permitSnapshot(t, api.SnapshotRequest{Scope: scope}))
			})
			<-reached
			sandbox.Crash(first)
			w.trap = nil
			second := w.manager(false)
			eventually(t, "it runs", func() bool { got, _ := second.Get(operator, "x"); return got.State == api.StateRunning })
			free()
			wg.Wait()
			eventually(t, "it answers", func() bool {
				res, err := second.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4"}))
				return err == nil && *res.ExitCode == 4
			})
			if got := w.kept(); len(got) != 0 {
				t.Errorf("%v is left", got)
			}
			if err := second.Remove(t.Context(), operator, "x"); err != nil {
				t.Error(err)
			}
			w.nothingLeft(second)
		})
	}
}

// layered makes a sandbox with a layer, in which it is as if it had written a file.
func (w *fixture) layered(m *sandbox.Manager, name, space string) api.Sandbox {
	w.t.Helper()
	if err := workspace.LayersUsable(); err != nil {
		w.t.Skipf("needs root and an overlay filesystem: %v", err)
	}
	sb, err := m.Create(w.t.Context(), w.permit(api.SandboxSpec{Name: name, Workspace: &api.Workspace{Name: space, Layered: true}}), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "layer", "upper", "f"), "written")
	return sb
}

func TestCommitAndRollback(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	in := filepath.Join(w.dir, "workspaces", policy.LocalTenant, "space", "f")
	w.layered(m, "x", "space")
	d, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{})
	if err != nil || d.Added != 1 || len(d.Changes) != 1 || d.Changes[0].Path != "f" || d.Bytes != 7 {
		t.Errorf("the diff is %+v, %v", d, err)
	}
	for _, do := range []func(context.Context, policy.Caller, string) (api.Diff, error){m.CommitWorkspace, m.RollbackWorkspace} {
		if _, err := do(t.Context(), operator, "x"); api.CodeOf(err) != api.CodeState {
			t.Errorf("of a sandbox that runs: %v", err)
		}
		if _, err := do(t.Context(), policy.Caller{Tenant: "other"}, "x"); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("for another tenant: %v", err)
		}
	}
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	// It has the workspace until it is settled.
	if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "y", Workspace: &api.Workspace{Name: "space"}}), nil); api.CodeOf(err) != api.CodeConflict {
		t.Errorf("another sandbox got the workspace: %v", err)
	}
	if d, err := m.RollbackWorkspace(t.Context(), operator, "x"); err != nil || d.Added != 1 || len(d.Changes) != 0 {
		t.Errorf("rollback: %+v, %v", d, err)
	}
	if _, err := os.Lstat(in); !os.IsNotExist(err) {
		t.Errorf("after a rollback: %v", err)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	w.layered(m, "x", "space")
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	if d, err := m.CommitWorkspace(t.Context(), operator, "x"); err != nil || d.Added != 1 {
		t.Errorf("commit: %+v, %v", d, err)
	}
	if got := w.read(in); got != "written" {
		t.Errorf("after a commit there is %q", got)
	}
	if d, err := m.CommitWorkspace(t.Context(), operator, "x"); err != nil || d.Added != 0 {
		t.Errorf("another commit: %+v, %v", d, err)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	plain := w.create(m, "plain")
	for _, err := range []error{
		func() error { _, err := m.Diff(t.Context(), operator, plain.ID, api.DiffOptions{}); return err }(),
	} {
		if api.CodeOf(err) != api.CodeState {
			t.Errorf("of a workspace that is not layered: %v", err)
		}
	}
	if err := m.Remove(t.Context(), operator, "plain"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// TestCommitAndTheNextDaemon: a commit that a killed daemon began is finished by the
// next one, and by a removal.
func TestCommitAndTheNextDaemon(t *testing.T) {
	for _, how := range []string{"daemon", "rm"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t)
			first := w.manager(false)
			sb := w.layered(first, "x", "space")
			if _, err := first.Kill(t.Context(), operator, "x"); err != nil {
				t.Fatal(err)
			}
			// As it is from the first step of a commit on.
			w.write(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "layer", "commit"), "")
			m := first
			if how == "daemon" {
				sandbox.Crash(first)
				m = w.manager(false)
			} else if err := m.Remove(t.Context(), operator, "x"); err != nil {
				t.Fatal(err)
			}
			if got := w.read(filepath.Join(w.dir, "workspaces", policy.LocalTenant, "space", "f")); got != "written" {
				t.Errorf("the workspace has %q", got)
			}
			if how == "daemon" {
				if err := m.Remove(t.Context(), operator, "x"); err != nil {
					t.Fatal(err)
				}
			}
			w.nothingLeft(m)
		})
	}
}

// TestDiffOfTheRoot reads what the engine writes, by pages, and is not taken in.
func TestDiffOfTheRoot(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "x")
	w.machine.SetFaults(fake.Faults{Root: rootTar(t, "added", "in the root")})
	d, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{Scope: api.DiffRoot})
	if err != nil || d.Added != 1 || d.Changes[0].Path != "added" || d.Changes[0].Size != 11 || d.Next != "" {
		t.Errorf("the diff is %+v, %v", d, err)
	}
	for what, root := range map[string][]byte{
		"no tar": []byte("not a tar at all, for sure, but long enough to look like something" + string(make([]byte, 1000))),
		"upward": rootTar(t, "../../etc/passwd", "x"),
		"cut":    rootTar(t, "added", "in the root")[:700],
	} {
		w.machine.SetFaults(fake.Faults{Root: root})
		if d, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{Scope: api.DiffRoot}); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %+v, %v", what, d, err)
		}
		if got := states(m)[0]; got != api.StateRunning {
			t.Errorf("after %s it is %s", what, got)
		}
	}
	w.machine.SetFaults(fake.Faults{})
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{Scope: api.DiffRoot}); api.CodeOf(err) != api.CodeState {
		t.Errorf("the root of a sandbox that has ended: %v", err)
	}
	if _, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{Cursor: "%"}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a cursor that is none: %v", err)
	}
}

//go:build linux

package sandbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
)

// Files of a sandbox are read and changed by its agent, as those of its user.
func TestFilesOfASandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Limits: api.Limits{IdleMS: 3_600_000}}), nil); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	dir := t.TempDir()
	at := func(name string) api.FilePlace { return api.FilePlace{Path: filepath.Join(dir, name)} }
	// A write is a use.
	before := expiry(t, m)
	time.Sleep(5 * time.Millisecond)
	info, err := m.WriteFile(ctx, operator, "x", at("a/b/file"), 0o640, strings.NewReader("content"))
	if err != nil || info.Size != 7 || info.Mode != 0o640 {
		t.Fatalf("written is %+v, %v", info, err)
	}
	if after := expiry(t, m); !after.After(before) {
		t.Errorf("it expires at %s, before the write at %s", after, before)
	}
	r, info, err := m.ReadFile(ctx, operator, "x", at("a/b/file"), 3, 2)
	if err != nil || info.Size != 7 {
		t.Fatalf("%+v, %v", info, err)
	}
	data, err := io.ReadAll(r)
	if err != nil || string(data) != "te" {
		t.Errorf("read is %q, %v", data, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := m.ReadFile(ctx, operator, "x", at("none"), 0, -1); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.Symlink("b/file", filepath.Join(dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	for follow, want := range map[bool]api.FileType{false: api.TypeSymlink, true: api.TypeFile} {
		if info, err := m.StatFile(ctx, operator, "x", at("a/link"), follow); err != nil || info.Type != want {
			t.Errorf("the link is %+v, %v", info, err)
		}
	}
	first, err := m.ListFiles(ctx, operator, "x", at("a"), "", 1)
	if err != nil || len(first.Files) != 1 || first.Files[0].Name != "b" || first.Next == "" {
		t.Fatalf("listed are %+v, %v", first, err)
	}
	second, err := m.ListFiles(ctx, operator, "x", at("a"), first.Next, 1)
	if err != nil || len(second.Files) != 1 || second.Files[0].Name != "link" || second.Next != "" {
		t.Errorf("listed are %+v, %v", second, err)
	}
	if err := m.MakeDir(ctx, operator, "x", at("made/deep"), api.MakeDirOptions{}); err != nil {
		t.Error(err)
	}
	if err := m.MakeDir(ctx, operator, "x", at("none/deep"), api.MakeDirOptions{Exact: true}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a directory without a parent: %v", err)
	}
	if err := m.MoveFile(ctx, operator, "x", at("a/b/file"), filepath.Join(dir, "made/file")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "made/file")); err != nil {
		t.Error(err)
	}
	if err := m.RemoveFile(ctx, operator, "x", at("made"), api.RemoveFileOptions{}); err == nil {
		t.Error("a directory that is not empty was removed")
	}
	if err := m.RemoveFile(ctx, operator, "x", at("made"), api.RemoveFileOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := m.Kill(ctx, operator, "x"); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ref string) error{
		"stat": func(ref string) error { _, err := m.StatFile(ctx, operator, ref, at("a"), false); return err },
		"list": func(ref string) error { _, err := m.ListFiles(ctx, operator, ref, at("a"), "", 0); return err },
		"read": func(ref string) error { _, _, err := m.ReadFile(ctx, operator, ref, at("a"), 0, -1); return err },
		"write": func(ref string) error {
			_, err := m.WriteFile(ctx, operator, ref, at("w"), 0, strings.NewReader("x"))
			return err
		},
		"mkdir": func(ref string) error { return m.MakeDir(ctx, operator, ref, at("d"), api.MakeDirOptions{}) },
		"move":  func(ref string) error { return m.MoveFile(ctx, operator, ref, at("a"), dir+"/z") },
		"remove": func(ref string) error {
			return m.RemoveFile(ctx, operator, ref, at("a"), api.RemoveFileOptions{Recursive: true})
		},
		"tar in": func(ref string) error {
			_, err := m.TarIn(ctx, operator, ref, dir, api.TarInOptions{}, &bytes.Buffer{})
			return err
		},
		"tar": func(ref string) error {
			_, err := m.TarOut(ctx, operator, ref, dir, api.TarOutOptions{}, io.Discard)
			return err
		},
		"text": func(ref string) error { _, err := m.ReadText(ctx, operator, ref, api.ToolRead{}); return err },
	}
	for what, call := range calls {
		if err := call("x"); api.CodeOf(err) != api.CodeState {
			t.Errorf("%s of a stopped sandbox: %v", what, err)
		}
		if err := call("none"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s of no sandbox: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "a/link")); err != nil {
		t.Errorf("a call on a stopped sandbox did something: %v", err)
	}
}

// expiry is when the lease of the sandbox x ends.
func expiry(t *testing.T, m *sandbox.Manager) time.Time {
	t.Helper()
	sb, err := m.Get(operator, "x")
	if err != nil {
		t.Fatal(err)
	}
	if sb.ExpiresAt == nil {
		t.Fatal("it never expires")
	}
	return *sb.ExpiresAt
}

// A tar has the digest of what went by here, in both directions.
func TestTarsOfASandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "x")
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	if err := os.WriteFile(filepath.Join(from, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	report, err := m.TarOut(t.Context(), operator, "x", from, api.TarOutOptions{}, &raw)
	sum := sha256.Sum256(raw.Bytes())
	if err != nil || report.SHA256 != hex.EncodeToString(sum[:]) || report.Entries == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	report, err = m.TarIn(t.Context(), operator, "x", to, api.TarInOptions{}, bytes.NewReader(raw.Bytes()))
	if err != nil || report.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("%+v, %v", report, err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "file")); err != nil || string(data) != "content" {
		t.Errorf("unpacked is %q, %v", data, err)
	}
	report, err = m.TarIn(t.Context(), operator, "x", to, api.TarInOptions{}, strings.NewReader("no tar"))
	if err == nil || report.SHA256 != "" {
		t.Errorf("what is no tar has the digest %q, %v", report.SHA256, err)
	}
	report, err = m.TarOut(t.Context(), operator, "x", from+"/none", api.TarOutOptions{}, io.Discard)
	if !errors.Is(err, api.ErrNotFound) || report.SHA256 != "" {
		t.Errorf("%+v, %v", report, err)
	}
}

// The tools for files work below their root, which is the workspace where none is named.
func TestToolsOfASandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "x")
	root := t.TempDir()
	place := func(path string) api.ToolPlace { return api.ToolPlace{Root: root, Path: path} }
	written, err := m.WriteText(t.Context(), operator, "x", api.ToolWrite{ToolPlace: place("a.txt"), Content: "one\ntwo\nthree\n"})
	if err != nil || !written.Created || written.Size != 14 {
		t.Fatalf("%+v, %v", written, err)
	}
	edited, err := m.EditText(t.Context(), operator, "x", api.ToolEdit{ToolPlace: place("a.txt"), Old: "two", New: "2"})
	if err != nil || edited.Size != 12 || edited.Created {
		t.Errorf("%+v, %v", edited, err)
	}
	text, err := m.ReadText(t.Context(), operator, "x", api.ToolRead{ToolPlace: place("a.txt"), FirstLine: 2, Lines: 1})
	if err != nil || text.Content != "2\n" || !text.More {
		t.Errorf("%+v, %v", text, err)
	}
	files, err := m.Glob(t.Context(), operator, "x", api.ToolGlob{ToolPlace: place(""), Pattern: "*.txt"})
	if err != nil || len(files.Files) != 1 {
		t.Errorf("%+v, %v", files, err)
	}
	lines, err := m.Grep(t.Context(), operator, "x", api.ToolGrep{ToolPlace: place(""), Pattern: "^th"})
	if err != nil || len(lines.Matches) != 1 {
		t.Errorf("%+v, %v", lines, err)
	}
	// A name chooses the sandbox, and is not passed on.
	text, err = m.ReadText(t.Context(), operator, "x", api.ToolRead{ToolPlace: api.ToolPlace{Naming: api.Naming{NameTemplate: "x"}, Root: root, Path: "a.txt"}})
	if err != nil || text.Lines != 3 {
		t.Errorf("%+v, %v", text, err)
	}
	// The imaginary machine has no workspace at its path.
	_, err = m.ReadText(t.Context(), operator, "x", api.ToolRead{ToolPlace: api.ToolPlace{Path: filepath.Join(root, "a.txt")}})
	if err == nil || !strings.Contains(err.Error(), "/workspace") {
		t.Errorf("outside the workspace: %v", err)
	}
}

// A workspace whose bound is measured is refused more before and after a command, and its
// sandbox goes with a managed process that wrote more.
func TestMeasuredWorkspace(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, dir := w.small(m, func(s *api.SandboxSpec) {
		s.Workspace = &api.Workspace{Quota: api.QuotaMeasured, SizeBytes: 2 << 20}
		s.Limits.DiskBytes = 0
	})
	if sb.Workspace.Enforced != api.HeldByMeasure {
		t.Fatalf("the workspace is %+v", sb.Workspace)
	}
	fill(t, filepath.Join(dir, "fits"), 1<<20)
	for _, phase := range []api.QuotaPhase{api.QuotaBefore, api.QuotaAfter} {
		if err := m.MeasureWorkspace(t.Context(), operator, "small", phase); err != nil {
			t.Errorf("%s: %v", phase, err)
		}
	}
	if err := m.MeasureWorkspace(t.Context(), operator, "none", api.QuotaBefore); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no sandbox: %v", err)
	}
	fill(t, filepath.Join(dir, "big"), 4<<20)
	for _, phase := range []api.QuotaPhase{api.QuotaBefore, api.QuotaAfter} {
		err := m.MeasureWorkspace(t.Context(), operator, "small", phase)
		if e, _ := errors.AsType[*api.Error](err); e == nil || e.Code != api.CodeQuota || e.Quota == nil || e.Quota.Phase != phase {
			t.Errorf("%s: %v", phase, err)
		}
	}
	if got, err := m.Get(operator, "small"); err != nil || got.State != api.StateRunning {
		t.Errorf("a look ended it: %s, %v", got.State, err)
	}
	start(t, m, sb, shell("p", "exit 0"))
	eventually(t, "the sandbox was removed for its quota", func() bool {
		got, err := m.Get(operator, "small")
		return errors.Is(err, api.ErrNotFound) || got.TerminalReason == api.EndedQuota
	})
	eventually(t, "nothing of it is left", func() bool {
		return len(w.machine.Left()) == 0 && len(m.List(operator, api.ListOptions{}).Sandboxes) == 0
	})
	w.mu.Lock()
	last := w.events[len(w.events)-1]
	w.mu.Unlock()
	if last.Kind != "sandbox.removed" || !strings.HasSuffix(last.Reason, ", after a process") {
		t.Errorf("the last event is %+v", last)
	}
	w.nothingLeft(m)
}

// Sandboxes are counted by their state and engine.
func TestTally(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	for _, name := range []string{"a", "b", "c"} {
		w.create(m, name)
	}
	if _, err := m.Pause(t.Context(), operator, "b"); err != nil {
		t.Fatal(err)
	}
	states, _, active := m.Tally()
	if len(states) != 2 || states[sandbox.Placed{State: api.StateRunning, Engine: "fake"}] != 2 || states[sandbox.Placed{State: api.StatePaused, Engine: "fake"}] != 1 || len(active) != 0 {
		t.Errorf("counted %v, %v", states, active)
	}
	if got := m.ImagesInUse(); len(got) != 1 || !api.ValidDigest(got[0]) {
		t.Errorf("images in use are %q", got)
	}
}

// The sandboxes of a home that was moved are lost to the engine, and keep what they wrote
// and what is known of those that were removed.
func TestMovedHome(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	gone := w.create(m, "gone")
	if err := m.Remove(t.Context(), operator, "gone"); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(w.sandboxes(), sb.ID, "workspace", "kept"), 3)
	if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	sandbox.Crash(m)
	from, to := filepath.Join(w.dir, "owner"), filepath.Join(w.dir, "owner-again")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be repeated
		if err := record.AdoptMoved(from, to); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(to, "sandboxes", sb.ID)
	if state := sandbox.EngineStateForTest(t, dir); state != nil {
		t.Errorf("the engine finds it by %q", state)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "workspace", "kept")); err != nil || len(data) != 3 {
		t.Errorf("kept are %q, %v", data, err)
	}
	if left, err := os.ReadDir(filepath.Join(from, "sandboxes")); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	tomb, err := os.ReadFile(filepath.Join(to, "removed.ndjson"))
	if err != nil || !strings.Contains(string(tomb), gone.ID) {
		t.Errorf("removed are %q, %v", tomb, err)
	}
	// One that is there already stays.
	if err := os.WriteFile(filepath.Join(from, "removed.ndjson"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := record.AdoptMoved(from, to); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(filepath.Join(to, "removed.ndjson")); err != nil || !bytes.Equal(now, tomb) {
		t.Errorf("removed are %q, %v", now, err)
	}
}

//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
)

// runningExec says whether an exec is under way, as its sandbox's agent tells.
func runningExec(t *testing.T, m *sandbox.Manager, id string) bool {
	t.Helper()
	all, err := m.Processes(t.Context(), operator, "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.ExecID == id {
			return p.Running
		}
	}
	return false
}

// An exec whose caller leaves is killed where its request says so, and runs on otherwise.
func TestExecWhoseCallerLeaves(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	for id, cancels := range map[string]bool{"killed": true, "kept": false} {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		permit := permitExec(t, sb, api.ExecRequest{ExecID: id, Shell: "exec sleep 600", CancelWithCaller: cancels})
		ends := make(chan error, 1)
		go func() {
			_, err := m.Exec(ctx, operator, "x", permit)
			ends <- err
		}()
		eventually(t, id+" runs", func() bool { return runningExec(t, m, id) })
		leave()
		if err := <-ends; api.CodeOf(err) != api.CodeCanceled {
			t.Errorf("%s: %v, want %s", id, err, api.CodeCanceled)
		}
	}
	for id, cancels := range map[string]bool{"killed-stream": true, "kept-stream": false} {
		st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{ExecID: id, Shell: "exec sleep 600", CancelWithCaller: cancels}))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"killed", "killed-stream"} {
		eventually(t, id+" has ended", func() bool { return !runningExec(t, m, id) })
	}
	for _, id := range []string{"kept", "kept-stream"} {
		if !runningExec(t, m, id) {
			t.Errorf("%s has ended", id)
		}
	}
}

// A stream that could not be started leaves no deadline, which could end a later program
// with the same id.
func TestStreamThatDoesNotStart(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	req := api.ExecRequest{ExecID: "never", Argv: []string{"/no/such/program"}, TimeoutMS: new(time.Hour.Milliseconds())}
	if _, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, req)); api.CodeOf(err) != api.CodeCommandNotFound {
		t.Errorf("a program that is not there: %v, want %s", err, api.CodeCommandNotFound)
	}
	if n, _ := sandbox.Deadlines(m, sb.ID); n != 0 {
		t.Errorf("%d deadlines", n)
	}
}

// Recover names the sandbox whose remains it could not clear, and recovers the others.
func TestRecoverTellsWhatItCouldNotClear(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	sandbox.Crash(m)
	// The staging directory has mount points only: a file in one is never removed.
	stuck := filepath.Join(w.sandboxes(), "sb-stuck", "staging", "m-0", "file")
	if err := os.MkdirAll(filepath.Dir(stuck), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write(stuck, "content")
	w.write(filepath.Join(w.sandboxes(), "sb-stuck", "creating.json"), "{}")
	m = w.newManager(false)
	t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	if err := m.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "clear what is left of sb-stuck") {
		t.Errorf("recover: %v, want what is left of sb-stuck", err)
	}
	if _, err := os.Stat(stuck); err != nil {
		t.Error(err)
	}
	if got, err := m.Get(operator, sb.ID); err != nil || got.State != api.StateRunning {
		t.Errorf("the other sandbox: %s, %v", got.State, err)
	}
	if _, err := m.Get(operator, "sb-stuck"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("what is left is listed: %v", err)
	}
}

// RecordedImages has no record open when it returns.
func TestRecordedImagesClosesRecords(t *testing.T) {
	owners := t.TempDir()
	for _, id := range []string{"sb-1", "sb-2", "sb-3"} {
		dir := filepath.Join(owners, "owner", "sandboxes", id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "sandbox.json"), []byte(`{"Version":2,"Info":{"id":"`+id+`","image_digest":"sha256:`+id+`"}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	digests, err := directory.RecordedImages(owners)
	open, derr := os.ReadDir("/proc/self/fd")
	if err != nil || derr != nil || len(digests) != 3 {
		t.Fatalf("%q, %v, %v", digests, err, derr)
	}
	for _, fd := range open {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(name, owners) {
			t.Errorf("%s is open", name)
		}
	}
}

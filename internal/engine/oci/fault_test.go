//go:build linux

package oci_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/oci"
)

// script writes a runtime that is a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestStrangeRuntimes: what a runtime says of itself is believed only when it is an
// answer, and one that gives none keeps no other from being judged.
func TestStrangeRuntimes(t *testing.T) {
	tests := []struct{ name, text, problem string }{
		{"absent", "", "no such program"},
		{"hangs", "sleep 1000", "has not said its version"},
		{"hangs with what it has started", "sleep 1000 & wait", "has not said its version"},
		{"garbage", `printf '\377\000\033[2J'`, "does not say what it is"},
		{"never ends to talk", "while :; do echo runc version 1; done", "does not say what it is"},
		{"fails", "exit 3", "does not say what it is"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			runtime := "/nonexistent/runtime"
			if test.text != "" {
				runtime = script(t, test.text)
			}
			e := newEngine(t, runtime, t.TempDir())
			r := e.Probe(t.Context())
			if r.Usable || len(r.Problems) == 0 || !strings.Contains(r.Problems[0].What, test.problem) || r.Problems[0].Mend == "" {
				t.Errorf("usable %v, problems %+v, want one with %q", r.Usable, r.Problems, test.problem)
			}
			for _, name := range []string{oci.Runc, oci.Crun, oci.Krun} {
				if r.Facts[name] == "" {
					t.Errorf("nothing is said of %s: %v", name, r.Facts)
				}
			}
			if strings.ContainsRune(fmt.Sprint(r), '\033') {
				t.Errorf("the report acts on a terminal: %+q", fmt.Sprint(r))
			}
			_, err := e.Create(t.Context(), enginetest.Plan(t, enginetest.Images{}))
			if api.CodeOf(err) != api.CodeUnavailable {
				t.Errorf("create: %v", err)
			}
		})
	}
}

// TestWrongRuntimes has runtimes that say their version and then do something else than they were
// asked.
func TestWrongRuntimes(t *testing.T) {
	usable(t, oci.Runc)
	images := enginetest.BuildImages(t, t.TempDir())
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	// The verb is the first word that is not a global option.
	const head = `[ "$1" = --version ] && { echo wrong version 1; exit 0; }; shift 6; `
	tests := []struct {
		name, text string
		patience   time.Duration // 0: the test's
		want       api.Code
	}{
		{"does nothing", head + "exit 0", 0, api.CodeInternal},
		{"fails", head + "echo no >&2; exit 1", 0, api.CodeInternal},
		{"names a process of somebody else's", head + fmt.Sprintf(`[ "$1" = state ] && echo '{"id":"sandbox","status":"created","pid":%d}'; exit 0`, victim.Process.Pid), 0, api.CodeInternal},
		{"says garbage of the state", head + `[ "$1" = state ] && echo '{'; exit 0`, 0, api.CodeInternal},
		{"hangs", head + "sleep 1000", 3 * time.Second, api.CodeTimeout},
		{"hangs when asked for the state", head + `[ "$1" = state ] && sleep 1000; exit 0`, 3 * time.Second, api.CodeTimeout},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			state := t.TempDir()
			e := newEngine(t, script(t, test.text), state)
			p := enginetest.Plan(t, images)
			if r := e.Probe(t.Context()); !r.Usable {
				t.Fatalf("not usable: %v", r.Problems)
			}
			ctx := t.Context()
			if test.patience > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.patience)
				defer cancel()
			}
			_, err := e.Create(ctx, p)
			if api.CodeOf(err) != test.want {
				t.Errorf("create: %v", err)
			}
			for _, dir := range []string{p.Dir, state} {
				for _, left := range files(t, dir) {
					t.Errorf("left: %s", left)
				}
			}
			if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the process of somebody else's: %v", err)
			}
		})
	}
}

// TestRuntimeGone: what runs goes on without its runtime, is found again and can be
// ended.
func TestRuntimeGone(t *testing.T) {
	usable(t, oci.Runc)
	images := enginetest.BuildImages(t, t.TempDir())
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc in the PATH, to copy it")
	}
	b, err := os.ReadFile(runc)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	p := enginetest.Plan(t, images)
	i, err := newEngine(t, path, state).Create(t.Context(), p)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	later := newEngine(t, path, state)
	if r := later.Probe(t.Context()); r.Usable {
		t.Error("an engine whose runtime is gone is usable")
	}
	var again engine.Instance
	if again, err = later.Recover(t.Context(), i.State()); err != nil {
		t.Fatalf("recover: %v", err)
	}
	if err := enginetest.Echo(t.Context(), again, "are you there"); err != nil {
		t.Errorf("dial: %v", err)
	}
	for _, x := range []engine.Instance{again, i} {
		if err := x.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	for _, dir := range []string{p.Dir, state} {
		for _, left := range files(t, dir) {
			t.Errorf("left: %s", left)
		}
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/cloche-oci/" + p.Owner + "/" + p.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// files are those below a directory.
func files(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "ids" {
			found = append(found, e.Name())
			continue
		}
		found = append(found, files(t, filepath.Join(dir, "ids"))...)
	}
	return found
}

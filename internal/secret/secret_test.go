//go:build linux

package secret

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche"
)

const canary = "canary-0123456789"

func store(t *testing.T, source Source) (*Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	s := New(slog.New(slog.NewTextHandler(&log, nil)))
	s.Use(map[string]Source{"key": source})
	return s, &log
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestValueOfEachSource(t *testing.T) {
	t.Setenv("CLOCHE_TEST_SECRET", canary)
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, canary+"\n", 0o600)
	link := file + ".link"
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]Source{
		"env": {Env: "CLOCHE_TEST_SECRET"}, "file": {File: file}, "file behind a name": {File: link},
		"exec": {Exec: []string{"/bin/sh", "-c", "echo " + canary}},
	} {
		s, log := store(t, source)
		if v, err := s.Value(t.Context(), "key"); err != nil || v != canary {
			t.Errorf("%s: %q, %v", name, v, err)
		}
		if strings.Contains(log.String(), canary) {
			t.Errorf("%s: the log has it", name)
		}
	}
}

// TestSourceThatIsNotGood: what others could read or write is no secret, and what
// is wrong is told to the log and to nobody else.
func TestSourceThatIsNotGood(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("wide"), canary, 0o640)
	write(t, at("world"), canary, 0o604)
	write(t, at("large"), strings.Repeat("x", maxValue+10), 0o600)
	write(t, at("empty"), "\n", 0o600)
	write(t, at("nul"), "a\x00b", 0o600)
	if err := syscall.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CLOCHE_TEST_EMPTY", "")
	for name, source := range map[string]Source{
		"mode": {File: at("wide")}, "mode of others": {File: at("world")}, "large": {File: at("large")}, "empty": {File: at("empty")},
		"nul": {File: at("nul")}, "pipe": {File: at("fifo")}, "directory": {File: dir}, "device": {File: "/dev/zero"}, "none": {File: at("none")},
		"no variable": {Env: "CLOCHE_TEST_NONE"}, "empty variable": {Env: "CLOCHE_TEST_EMPTY"},
		"program fails":  {Exec: []string{"/bin/sh", "-c", "echo " + canary + "; echo " + canary + " >&2; exit 3"}},
		"program floods": {Exec: []string{"/bin/sh", "-c", "while :; do echo " + canary + "; done"}}, "no program": {Exec: []string{"/nonexistent/x"}},
	} {
		s, log := store(t, source)
		v, err := s.Value(t.Context(), "key")
		e, ok := errors.AsType[*cloche.Error](err)
		if v != "" || !ok || e.Code != cloche.CodeUnavailable || strings.Contains(e.Message+e.Hint, dir) || strings.Contains(e.Message+e.Hint, canary) {
			t.Errorf("%s: %q, %v", name, v, err)
		}
		if log.Len() == 0 || strings.Contains(log.String(), canary) {
			t.Errorf("%s: the log says %q", name, log)
		}
	}
	s, _ := store(t, Source{Env: "CLOCHE_TEST_NONE"})
	if _, err := s.Value(t.Context(), "other"); cloche.CodeOf(err) != cloche.CodeUnavailable {
		t.Error(err)
	}
}

// TestProgramHasNothingOfTheDaemon: its environment is its own, and what it leaves
// behind ends with it.
func TestProgramHasNothingOfTheDaemon(t *testing.T) {
	t.Setenv("CLOCHE_TEST_SECRET", canary)
	s, _ := store(t, Source{Exec: []string{"/bin/sh", "-c", "sleep 1000 >/dev/null & echo $!; env | sort | tr '\\n' ' '"}})
	v, err := s.Value(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(v, canary) || !strings.Contains(v, "HOME=/nonexistent") {
		t.Errorf("it had %q", v)
	}
	pid, _, _ := strings.Cut(v, "\n")
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) {
		status, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || bytes.Contains(status, []byte(") Z ")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("what it left runs on: %s", status)
		}
	}
}

func TestProgramIsEndedWithItsCaller(t *testing.T) {
	s, _ := store(t, Source{Exec: []string{"/bin/sh", "-c", "sleep 1000"}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := s.Value(ctx, "key"); err == nil || time.Since(begun) > 8*time.Second {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
}

func TestRotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "first-value", 0o600)
	s, _ := store(t, Source{File: file})
	now := time.Now()
	s.now = func() time.Time { return now }
	get := func() string {
		v, err := s.Value(t.Context(), "key")
		if err != nil {
			return "none"
		}
		return v
	}
	first := get()
	write(t, file, "second-value", 0o600)
	soon := get()
	now = now.Add(fresh)
	second := get()
	if first != "first-value" || soon != "first-value" || second != "second-value" {
		t.Errorf("%q, %q, %q", first, soon, second)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if now = now.Add(fresh); get() != "none" {
		t.Error("what was taken away is still in use")
	}
	write(t, file, "third-value", 0o600)
	if now = now.Add(failed); get() != "third-value" {
		t.Error("it does not come back")
	}
	t.Setenv("CLOCHE_TEST_SECRET", "of-another-source")
	if s.Use(map[string]Source{"key": {Env: "CLOCHE_TEST_SECRET"}}); get() != "of-another-source" {
		t.Error("the old source is in use")
	}
	if s.Use(nil); get() != "none" {
		t.Error("it is not in the rules and in use")
	}
	if got := s.Redact("first-value second-value third-value of-another-source"); got != strings.Repeat(mark+" ", 3)+mark {
		t.Errorf("old values are told: %q", got)
	}
}

func TestRedact(t *testing.T) {
	t.Setenv("CLOCHE_TEST_SECRET", "a\"b/c d+e f")
	s, _ := store(t, Source{Env: "CLOCHE_TEST_SECRET"})
	if got := s.Redact("nothing is known"); got != "nothing is known" {
		t.Error(got)
	}
	s.Learn(t.Context())
	coded := base64.StdEncoding.EncodeToString([]byte("a\"b/c d+e f"))
	for _, text := range []string{"a\"b/c d+e f", `a\"b/c d+e f`, "a%22b%2Fc+d%2Be+f", "a%22b%2Fc%20d+e%20f", coded} {
		if got := s.Redact("<" + text + "> " + text); got != "<"+mark+"> "+mark {
			t.Errorf("%q became %q", text, got)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				s.Redact("some text")
				_, _ = s.Value(t.Context(), "key")
			}
		})
	}
	wg.Wait()
}

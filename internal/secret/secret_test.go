//go:build linux

package secret

import (
	"bytes"
	"context"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/longtest"
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

// TestSourceThatIsNotGood: what others could read or write is no secret, and the
// reason is in the log only.
func TestSourceThatIsNotGood(t *testing.T) {
	longtest.Skip(t, "it waits for a command that hangs")
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
		e, ok := errors.AsType[*api.Error](err)
		if v != "" || !ok || e.Code != api.CodeUnavailable || strings.Contains(e.Message+e.Hint, dir) || strings.Contains(e.Message+e.Hint, canary) {
			t.Errorf("%s: %q, %v", name, v, err)
		}
		if log.Len() == 0 || strings.Contains(log.String(), canary) {
			t.Errorf("%s: the log says %q", name, log)
		}
	}
	s, _ := store(t, Source{Env: "CLOCHE_TEST_NONE"})
	if _, err := s.Value(t.Context(), "other"); api.CodeOf(err) != api.CodeUnavailable {
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
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
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
	if _, err := s.Value(ctx, "key"); err == nil || time.Since(begun) > time.Minute {
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

func TestRedactEveryForm(t *testing.T) {
	const value = "Canary.Value-0123456789/ABCDEFGHIJ_klmnopqrstuvwxyz_0123456789_klmnopqrstuvwxyz"
	t.Setenv("CLOCHE_TEST_SECRET", value)
	s, _ := store(t, Source{Env: "CLOCHE_TEST_SECRET"})
	s.Learn(t.Context())
	percent := ""
	for i := range len(value) {
		percent += fmt.Sprintf("%%%02x", value[i])
	}
	for name, text := range map[string]string{
		"upper case":          strings.ToUpper(value),
		"lower case":          strings.ToLower(value),
		"all percent":         percent,
		"percent twice":       strings.ReplaceAll(percent, "%", "%25"),
		"some percent":        strings.Replace(value, "-", "%2D", 1),
		"two labels":          value[:40] + "." + value[40:],
		"labels in lower":     strings.ToLower(value[:30] + "." + value[30:60] + "." + value[60:]),
		"hex":                 fmt.Sprintf("%x", value),
		"hex in upper case":   fmt.Sprintf("%X", value),
		"base32":              base32.StdEncoding.EncodeToString([]byte(value)),
		"base64 for URLs":     base64.RawURLEncoding.EncodeToString([]byte(value)),
		"labels with percent": strings.Replace(value[:40], "-", "%2d", 1) + "." + value[40:],
	} {
		got := s.Redact("GET " + text + " end")
		if want := "GET " + mark + " end"; strings.TrimRight(strings.Replace(got, "=", "", -1), "=") != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte("user:"[:shift+2] + value + "&more"))
		if got := s.Redact(text); !strings.Contains(got, mark) || len(got) > 40 {
			t.Errorf("base64 behind %d bytes: %q", shift+2, got)
		}
	}
	for text, want := range map[string]string{
		"comm " + value[:14]:                         "comm " + mark,
		`"x.` + strings.ToLower(value[:30]) + `..."`: `"x.` + mark + `..."`,
		value[:20] + "…":                             mark + "…",
		`"x` + value[:40] + `..." is in no rule`:     `"x` + mark + `..." is in no rule`,
		"xx " + value[:9]:                            "xx " + value[:9],
		value[:20] + " goes on otherwise":            value[:20] + " goes on otherwise",
		strings.ToUpper(value)[:len(value)-1] + "!":  strings.ToUpper(value)[:len(value)-1] + "!",
	} {
		if got := s.Redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestRedactWithin(t *testing.T) {
	t.Setenv("CLOCHE_TEST_SECRET", canary)
	s, _ := store(t, Source{Env: "CLOCHE_TEST_SECRET"})
	s.Learn(t.Context())
	type word string
	type inner struct{ Text string }
	type outer struct {
		Text    string
		Word    word
		List    []string
		Inner   *inner
		Inners  []inner
		Map     map[string]string
		Time    time.Time
		private string
	}
	at := time.Now()
	make := func(text string) outer {
		return outer{text, canary, []string{"a", text}, &inner{text}, []inner{{"a"}, {text}}, map[string]string{"k" + text: text}, at, canary}
	}
	in := make(canary)
	if got := In(s.Redact, in); !reflect.DeepEqual(got, make(mark)) {
		t.Errorf("%+v", got)
	}
	if !reflect.DeepEqual(in, make(canary)) {
		t.Error("the original was changed")
	}
	clean := make("nothing")
	if got := In(s.Redact, clean); got.Inner != clean.Inner || &got.List[0] != &clean.List[0] {
		t.Error("what has no value was copied")
	}
}

func BenchmarkRedact(b *testing.B) {
	s := New(slog.New(slog.DiscardHandler))
	for i := range 10 {
		s.known.add(fmt.Sprint(i), fmt.Sprintf("value-of-secret-%d-%s", i, strings.Repeat("x", 20)))
	}
	for _, text := range []string{"sb-01234567", "api.example.com", "/v1/chat/completions?model=large%20one&stream=true"} {
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Redact(text)
			}
		})
	}
}

// Values that overlap, and one within another, are taken out whole.
func TestRedactOverlaps(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler))
	s.known.add("a", "abcdef0123456789")
	s.known.add("b", "0123456789ghijkl")
	s.known.add("c", "cdef01")
	if got := s.Redact("<abcdef0123456789ghijkl> cdef01"); got != "<"+mark+"> "+mark {
		t.Error(got)
	}
}

//go:build linux

package audit_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/audit"
)

// writerEnv makes the test binary one of many writers: "path name count".
const writerEnv = "AUDIT_TEST_WRITER"

func TestMain(m *testing.M) {
	if job := os.Getenv(writerEnv); job != "" {
		if err := write(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func write(job string) error {
	f := strings.Split(job, "\n")
	n, err := strconv.Atoi(f[2])
	if err != nil {
		return err
	}
	log, err := audit.Open(f[0], slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	for i := range n {
		e := event(fmt.Sprintf("%s-%d", f[1], i))
		e.Details = map[string]string{"pad": strings.Repeat("x", i%1000)}
		if err := log.Record(context.Background(), e); err != nil {
			return err
		}
	}
	return log.Close()
}

func event(id string) audit.Event {
	return audit.Event{RequestID: id, Tenant: "local", Verb: "exec", Outcome: audit.Done}
}

func open(t *testing.T, path string) *audit.Log {
	t.Helper()
	log, err := audit.Open(path, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return log
}

func record(t *testing.T, log *audit.Log, e audit.Event) {
	t.Helper()
	if err := log.Record(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// read returns every whole line as an event; other lines are returned apart.
func read(t *testing.T, path string) (events []audit.Event, broken []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, audit.MaxLine)
	for lines.Scan() {
		var e audit.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			broken = append(broken, lines.Text())
			continue
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return events, broken
}

func TestRecordAndReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	start := time.Now()
	record(t, log, audit.Event{
		RequestID: "r1", Tenant: "tcp", Caller: "tcp", Verb: "create", Sandbox: "sb-1",
		Outcome: audit.Refused, Code: "denied", Rule: "mounts", Details: map[string]string{"image": "host"},
	})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := log.Record(t.Context(), event("x")); cloche.CodeOf(err) != cloche.CodeUnavailable {
		t.Errorf("Record after Close: %v", err)
	}
	record(t, open(t, path), event("r2"))
	events, broken := read(t, path)
	if len(events) != 2 || len(broken) != 0 {
		t.Fatalf("%+v %q", events, broken)
	}
	e := events[0]
	if e.Rule != "mounts" || e.Sandbox != "sb-1" || e.Details["image"] != "host" || e.Outcome != audit.Refused || e.Truncated {
		t.Errorf("event %+v", e)
	}
	if e.Time.Before(start.Add(-time.Second)) || e.Time.Location() != time.UTC {
		t.Errorf("time %v", e.Time)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestOpenNarrowsTheMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	open(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir, filepath.Join(dir, "no", "such")} {
		if log, err := audit.Open(path, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s was opened: %v", path, log.Close())
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "target")); err == nil {
		t.Error("a symlink was followed")
	}
}

// TestManyProcesses has several processes, each with several goroutines' worth
// of lines, write to one file: every line arrives whole and once.
func TestManyProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const processes, lines = 4, 200
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := open(t, path)
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = []string{writerEnv + "=" + strings.Join([]string{path, fmt.Sprint("p", p), fmt.Sprint(lines)}, "\n")}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("writer: %v: %s", err, out)
			}
		})
		wg.Go(func() {
			for i := range lines {
				if err := log.Record(t.Context(), event(fmt.Sprintf("g%d-%d", p, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	events, broken := read(t, path)
	if len(broken) != 0 {
		t.Errorf("broken lines: %.200q", broken)
	}
	seen := map[string]int{}
	for _, e := range events {
		seen[e.RequestID]++
	}
	for p := range processes {
		for i := range lines {
			for _, id := range []string{fmt.Sprintf("p%d-%d", p, i), fmt.Sprintf("g%d-%d", p, i)} {
				if seen[id] != 1 {
					t.Errorf("event %s stands there %d times", id, seen[id])
				}
			}
		}
	}
}

func TestTornLineIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const torn = `{"time":"2030-01-01T00:00:00Z","tenant":"lo`
	record(t, open(t, path), event("before"))
	appendRaw(t, path, torn)
	record(t, open(t, path), event("after"))
	record(t, open(t, path), event("later"))
	events, broken := read(t, path)
	if len(events) != 3 || events[1].RequestID != "after" || len(broken) != 1 || broken[0] != torn {
		t.Errorf("events %+v, broken %q", events, broken)
	}
}

func appendRaw(t *testing.T, path, s string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNothingSpoilsALine: whatever a caller writes is one line of printable
// ASCII-safe JSON of bounded length, and comes back as it was.
func TestNothingSpoilsALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	nasty := "a\n{\"verb\":\"fake\"}\r\x00\x1b[2J\x7f\u009b\u2028\u202e\U000e0041 ü 漢 <&>"
	e := event(nasty)
	e.Details = map[string]string{nasty: nasty}
	record(t, log, e)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte("\n")); n != 1 || !bytes.HasSuffix(data, []byte("\n")) {
		t.Errorf("%d lines: %q", n, data)
	}
	if bytes.ContainsAny(data, "\x00\x1b\x7f\u009b\u2028\u202e\U000e0041\r") {
		t.Errorf("a control character stands in %q", data)
	}
	events, _ := read(t, path)
	if len(events) != 1 || events[0].RequestID != nasty || events[0].Details[nasty] != nasty || events[0].Truncated {
		t.Errorf("read back %+v", events)
	}
}

func TestEventsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	for _, pad := range []string{strings.Repeat("x", 64<<10), strings.Repeat("\x01", 64<<10), strings.Repeat("漢", 64<<10), strings.Repeat("\xff", 64<<10)} {
		e := event(pad)
		e.Verb = "create"
		e.Tenant, e.Caller, e.Sandbox, e.Rule, e.Code = pad, pad, pad, pad, pad
		e.Details = map[string]string{}
		for i := range 40 {
			e.Details[fmt.Sprint(i, pad)] = pad
		}
		record(t, log, e)
		if len(e.Details) != 40 || e.Truncated {
			t.Error("Record changed the caller's event")
		}
	}
	events, broken := read(t, path) // which takes no line over MaxLine
	if len(events) != 4 || len(broken) != 0 {
		t.Fatalf("%d events, %d broken", len(events), len(broken))
	}
	for _, e := range events {
		if !e.Truncated || e.Verb != "create" || strings.ContainsRune(strings.TrimRight(e.Tenant, "�"), '�') {
			t.Errorf("event %.100q truncated %t", e.Tenant, e.Truncated)
		}
	}
}

func TestMovedLogIsBegunAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	record(t, log, event("first"))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	record(t, log, event("second"))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	record(t, log, event("third"))
	if old, _ := read(t, path+".1"); len(old) != 1 || old[0].RequestID != "first" {
		t.Errorf("moved log: %+v", old)
	}
	if now, _ := read(t, path); len(now) != 1 || now[0].RequestID != "third" {
		t.Errorf("new log: %+v", now)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestUnwritableLogIsAnError: who cannot record must not go on, and the caller
// reads no path of the host.
func TestUnwritableLogIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	log := open(t, filepath.Join(dir, "audit.log"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := log.Record(t.Context(), event("x"))
	if cloche.CodeOf(err) != cloche.CodeUnavailable || strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

// TestFullDiskLeavesNoHalfLine runs where the file may not grow past a bound.
func TestFullDiskLeavesNoHalfLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	record(t, open(t, path), event("before"))
	// 4 KiB is the file size limit; the writer's lines outgrow it.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `trap "" XFSZ; ulimit -f 8; exec "$0"`, self)
	cmd.Env = []string{writerEnv + "=" + path + "\nw\n500"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "audit log cannot be written") {
		t.Fatalf("the writer did not meet the limit: %v: %s", err, out)
	}
	record(t, open(t, path), event("after"))
	events, broken := read(t, path)
	if len(broken) != 0 || len(events) < 3 || events[len(events)-1].RequestID != "after" {
		t.Errorf("%d events, broken %.300q", len(events), broken)
	}
}

func TestCancelledCallerIsRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Record(ctx, event("gone")); err != nil {
		t.Fatal(err)
	}
	if events, _ := read(t, path); len(events) != 1 {
		t.Errorf("%+v", events)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("r", "tenant", "key", "value")
	f.Add("\n", "\x00\xff", "\u2028", "\U0010ffff\x7f")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, id, tenant, key, value string) {
		path := filepath.Join(dir, strconv.Itoa(os.Getpid()))
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		e := event(id)
		e.Tenant, e.Details = tenant, map[string]string{key: value}
		record(t, open(t, path), e)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > audit.MaxLine || bytes.Count(data, []byte("\n")) != 1 {
			t.Fatalf("not one line: %q", data)
		}
		var back audit.Event
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%v: %q", err, data)
		}
		if !back.Truncated && back.Tenant != strings.ToValidUTF8(tenant, "\ufffd") && back.Tenant != string([]rune(tenant)) {
			t.Fatalf("tenant %q became %q", tenant, back.Tenant)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	log, err := audit.Open(filepath.Join(b.TempDir(), "audit.log"), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	e := event("r")
	e.Details = audit.ExecDetails(cloche.ExecRequest{Argv: []string{"/bin/true"}}, false)
	for b.Loop() {
		if err := log.Record(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		b.Fatal(err)
	}
}

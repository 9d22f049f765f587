//go:build linux

package sandbox_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// Daemons come and go, by a shutdown or killed, while a process writes and is
// written to. Its log has every byte once, and an attach goes on where the one
// before it stopped.
func TestProcessesOutliveTheDaemon(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("count", `i=0; while read -r x; do i=$((i+1)); echo "$i $x"; done; echo end $i; exit 6`)
	spec.OpenStdin = true
	before := start(t, m, sb, spec)
	restarting := shell("restarting", "exec sleep 600")
	restarting.Restart = &api.Restart{Policy: api.RestartAlways}
	start(t, m, sb, restarting)
	start(t, m, sb, shell("short", "echo short; exit 3"))

	var sent, want strings.Builder
	var offset, position int64
	var got strings.Builder
	line := 0
	for round := range 6 {
		a := attach(t, m, sb, "count", api.AttachRequest{Exclusive: true, Since: &position, StdinOffset: &offset})
		// It sends all again from some acknowledged offset on.
		back := int64(rand.N(sent.Len() + 1))
		if round > 0 {
			a.Close()
			if a = attach(t, m, sb, "count", api.AttachRequest{Exclusive: true, Since: &position, StdinOffset: &back}); a.Started().StdinOffset != back {
				t.Errorf("started %+v, want input from %d", a.Started(), back)
			}
		} else {
			back = 0
		}
		for range 50 {
			line++
			fmt.Fprintf(&sent, "line %d\n", line)
			fmt.Fprintf(&want, "%d line %d\n", line, line)
		}
		if err := a.Write([]byte(sent.String()[back:])); err != nil {
			t.Fatal(err)
		}
		for got.Len() < want.Len() || offset < int64(sent.Len()) {
			ev, err := a.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(ev.Data) > 0 && ev.Position != position {
				t.Fatalf("output at %d after %d", ev.Position, position)
			}
			got.Write(ev.Data)
			position += int64(len(ev.Data))
			if ev.Stdin != nil {
				offset = ev.Stdin.Offset
			}
		}
		if round%2 == 0 {
			sandbox.Crash(m)
		} else if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := drain(a); code(err) != api.CodeUnavailable {
			t.Errorf("an attach over the end of the daemon: %v, want unavailable", err)
		}
		a.Close()
		m = w.manager(false)
	}
	if got.String() != want.String() {
		t.Errorf("attached got %q", got.String())
	}
	if rec, err := m.Process(t.Context(), operator, "dev", "count"); err != nil || rec.State != api.ProcessRunning || rec.PID != before.PID {
		t.Errorf("after the restarts: %+v, %v", rec, err)
	}
	if rec, err := m.Process(t.Context(), operator, "dev", "restarting"); err != nil || rec.State != api.ProcessRunning || rec.Restarts != 0 {
		t.Errorf("after the restarts: %+v, %v", rec, err)
	}
	if again := start(t, m, sb, spec); again.PID != before.PID {
		t.Errorf("the start again: %+v", again)
	}
	if rec := ended(t, m, sb, "short"); *rec.ExitCode != 3 || output(t, m, sb, api.LogOptions{ExecID: "short"}) != "short\n" {
		t.Errorf("one that had ended: %+v", rec)
	}
	if _, err := m.WriteStdin(t.Context(), operator, "dev", "count", nil, strings.NewReader(""), true); err != nil {
		t.Fatal(err)
	}
	if rec := ended(t, m, sb, "count"); *rec.ExitCode != 6 {
		t.Errorf("ended %+v", rec)
	}
	fmt.Fprintf(&want, "end %d\n", line)
	if log := output(t, m, sb, api.LogOptions{ExecID: "count"}); log != want.String() {
		t.Errorf("its log is %q", log)
	}
	eventually(t, "one start and one exit are told", func() bool {
		return slices.Equal(w.processEvents("count"), []string{"started", "exited"})
	})
	if err := m.Remove(t.Context(), operator, "dev"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// Connections to the agent break all the time, and neither output nor input is
// lost or repeated; nor is the end missed.
func TestBrokenConnections(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	cut := sandbox.BreakConnections(m)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	a := attach(t, m, sb, "cat", api.AttachRequest{Exclusive: true})
	var want strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&want, "%d ", i)
	}
	broken, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		// The gaps grow, so that on any machine one is long enough to get on.
		for gap := 20 * time.Millisecond; ; gap += 5 * time.Millisecond {
			cut(sb.ID)
			select {
			case broken <- struct{}{}:
			case <-time.After(gap):
			case <-stop:
				return
			}
		}
	}()
	var all lines
	followed := make(chan error)
	go func() {
		followed <- m.Logs(t.Context(), operator, sb.ID, api.LogOptions{ExecID: "cat", Follow: true}, all.take)
	}()
	text := want.String()
	for i := 0; i < len(text); i += 1000 {
		if err := a.Write([]byte(text[i:min(i+1000, len(text))])); err != nil {
			t.Fatal(err)
		}
		if i%10_000 == 0 {
			<-broken // there is something to break
		}
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, exit, err := drain(a)
	if err != nil || got != text || !exit.OK() {
		t.Errorf("%d bytes came back, %+v, %v; want %d", len(got), exit, err, len(text))
	}
	close(stop)
	<-stopped
	if err := <-followed; err != nil {
		t.Error(err)
	}
	if log := output(t, m, sb, api.LogOptions{ExecID: "cat"}); log != text {
		t.Errorf("%d bytes are in the log, want %d", len(log), len(text))
	}
}

// What ends while no daemon looks is found out by the next: its exit, its output,
// and how much of that the agent could not keep.
func TestWhatHappenedWithoutADaemon(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	const size = 16 << 20
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	start(t, m, sb, shell("drops", fmt.Sprintf("while [ ! -e %s ]; do sleep 0.01; done; head -c %d /dev/zero; echo done >%s/drops; exit 3", gate, size, dir)))
	block := shell("blocks", fmt.Sprintf("while [ ! -e %s ]; do sleep 0.01; done; head -c %d /dev/zero; exit 4", gate, size))
	block.OnFull = api.OnFullBlock
	start(t, m, sb, block)
	sandbox.Crash(m)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ended unseen", func() bool { _, err := os.Stat(filepath.Join(dir, "drops")); return err == nil })
	m = w.manager(false)
	if rec := ended(t, m, sb, "drops"); rec.ExitCode == nil || *rec.ExitCode != 3 || rec.Position != size {
		t.Errorf("ended %+v", rec)
	}
	var gap, data int64
	err := m.Logs(t.Context(), operator, "dev", api.LogOptions{ExecID: "drops", Follow: true}, func(e api.LogEntry) error {
		gap += e.Gap
		data += int64(len(e.Data))
		return nil
	})
	if err != nil || gap == 0 || data == 0 || gap+data != size {
		t.Errorf("%d bytes are missing and %d are there, %v; want %d together", gap, data, err, size)
	}
	if rec := ended(t, m, sb, "blocks"); rec.ExitCode == nil || *rec.ExitCode != 4 {
		t.Errorf("ended %+v", rec)
	}
	if got := output(t, m, sb, api.LogOptions{ExecID: "blocks"}); len(got) != size || strings.Trim(got, "\x00") != "" {
		t.Errorf("%d bytes of a process that is held up, want %d", len(got), size)
	}
}

// A start of which the daemon never heard the end is found out about, and one
// that never came about is not shown.
func TestStartsThatTheDaemonDidNotSurvive(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, shell("real", "echo real; exec sleep 600"))
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes")
	sandbox.UnconfirmForTest(t, filepath.Join(dir, "real"), "real")
	for _, sub := range []string{"never/log", "torn", ".gone-x/log"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sandbox.UnconfirmForTest(t, filepath.Join(dir, "never"), "never")
	m = w.manager(false)
	eventually(t, "the one that was started is there", func() bool {
		rec, err := m.Process(t.Context(), operator, "dev", "real")
		return err == nil && rec.State == api.ProcessRunning && output(t, m, sb, api.LogOptions{ExecID: "real"}) == "real\n"
	})
	eventually(t, "the others are gone", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 1
	})
	if _, err := m.Process(t.Context(), operator, "dev", "never"); code(err) != api.CodeNotFound {
		t.Errorf("one that never was: %v", err)
	}
	start(t, m, sb, shell("never", "exit 0"))
}

// settled waits until no more goroutines or descriptors are used than before.
func settled(t *testing.T, what string, before int, count func() int) {
	t.Helper()
	eventually(t, fmt.Sprintf("there are %d %s again", before, what), func() bool { return count() <= before })
}

func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

func TestNothingLeaks(t *testing.T) {
	cycles := 1000
	if testing.Short() {
		cycles = 100
	}
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, shell("stays", "exec sleep 600"))
	var goroutines, fds int
	for i := range cycles {
		if i == 10 {
			goroutines, fds = runtime.NumGoroutine(), descriptors()
		}
		spec := cat(fmt.Sprint("p", i%7))
		start(t, m, sb, spec)
		a := attach(t, m, sb, spec.ExecID, api.AttachRequest{Write: i%2 == 0})
		if i%3 == 0 {
			if _, err := m.WriteStdin(t.Context(), operator, "dev", spec.ExecID, nil, strings.NewReader("x"), true); err != nil {
				t.Fatal(err)
			}
			if _, exit, err := drain(a); err != nil || exit == nil {
				t.Fatal(err)
			}
		}
		a.Close()
		if err := m.RemoveProcess(t.Context(), operator, "dev", spec.ExecID); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, "goroutines", goroutines+2, runtime.NumGoroutine)
	settled(t, "descriptors", fds+2, descriptors)
	if left, err := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes")); err != nil || len(left) != 1 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	if err := m.Remove(t.Context(), operator, "dev"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

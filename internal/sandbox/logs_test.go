//go:build linux

package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The same questions have the same answers for an exec and for a managed
// process, while their sandbox runs and when it has been stopped.
func TestLogsFromAnyOffset(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	// In this order, because what comes first is on record before the next is written.
	script := func(id string) string {
		at := filepath.Join(w.dir, id)
		return fmt.Sprintf("on() { while ! [ -e %s.$1 ]; do sleep 0.01; done; }; echo one; on 4; echo TWO >&2; on 8; echo three; on 14; printf FOUR >&2", at)
	}
	pace := func(id string) {
		t.Helper()
		for _, n := range []int{4, 8, 14} {
			eventually(t, fmt.Sprintf("%d bytes of %s are on record", n, id), func() bool {
				return len(output(t, m, sb, api.LogOptions{ExecID: id})) == n
			})
			if err := os.WriteFile(fmt.Sprintf("%s.%d", filepath.Join(w.dir, id), n), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	st, err := m.ExecStream(t.Context(), operator, "dev", permitExec(t, sb, api.ExecRequest{ExecID: "exec", Shell: script("exec")}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	pace("exec")
	for ev, err := st.Recv(); ev.Exit == nil; ev, err = st.Recv() {
		if err != nil {
			t.Fatal(err)
		}
	}
	start(t, m, sb, shell("managed", script("managed")))
	pace("managed")
	ended(t, m, sb, "managed")
	cases := []struct {
		name string
		o    api.LogOptions
		want string
	}{
		{"all", api.LogOptions{}, "one\nTWO\nthree\nFOUR"},
		{"from a position", api.LogOptions{Since: new(int64(6))}, "O\nthree\nFOUR"},
		{"from the end", api.LogOptions{Since: new(int64(-6))}, "e\nFOUR"},
		{"from further than the beginning", api.LogOptions{Since: new(int64(-99))}, "one\nTWO\nthree\nFOUR"},
		{"one stream", api.LogOptions{Stream: api.Stderr}, "TWO\nFOUR"},
		{"one stream from an offset", api.LogOptions{Stream: api.Stdout, Since: new(int64(5))}, "hree\n"},
		{"one stream from the end", api.LogOptions{Stream: api.Stderr, Since: new(int64(-3))}, "OUR"},
		{"last lines", api.LogOptions{Tail: 2}, "three\nFOUR"},
		{"last line of a stream", api.LogOptions{Stream: api.Stdout, Tail: 1}, "three\n"},
		{"from the future", api.LogOptions{SinceTime: time.Now().Add(time.Hour)}, ""},
		{"from the past", api.LogOptions{SinceTime: time.Now().Add(-time.Hour)}, "one\nTWO\nthree\nFOUR"},
	}
	for _, state := range []string{"running", "stopped"} {
		if state == "stopped" {
			if _, err := m.Stop(t.Context(), operator, "dev", new(time.Duration)); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []string{"exec", "managed"} {
			for _, c := range cases {
				c.o.ExecID = id
				if got := output(t, m, sb, c.o); got != c.want {
					t.Errorf("%s of the %s of a sandbox that is %s: %q, want %q", c.name, id, state, got, c.want)
				}
				c.o.Follow = true
				if got := output(t, m, sb, c.o); !strings.HasPrefix(got, c.want+"[") {
					t.Errorf("%s of the %s of a sandbox that is %s, followed: %q, want %q and a reason", c.name, id, state, got, c.want)
				}
			}
		}
		if got := output(t, m, sb, api.LogOptions{}); got != cases[0].want+cases[0].want {
			t.Errorf("all of both: %q", got)
		}
		if got := output(t, m, sb, api.LogOptions{Tail: 3}); !strings.HasSuffix(got, "TWO\nthree\nFOUR") || len(got) > 20 {
			t.Errorf("the last lines of both: %q", got)
		}
	}
	err = m.Logs(t.Context(), operator, "dev", api.LogOptions{ExecID: "managed", Follow: true}, func(e api.LogEntry) error {
		if e.End == "" && e.Position == 0 && e.Offset != 0 || e.End != "" && e.Position != 18 {
			t.Errorf("entry %+v", e)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// lines collects what a follower sees.
type lines struct {
	mu  sync.Mutex
	got []string
}

func (l *lines) take(e api.LogEntry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(e.Data)) {
		l.got = append(l.got, e.ExecID+" "+strings.TrimSpace(line))
	}
	if e.End != "" {
		l.got = append(l.got, "end "+e.ExecID)
	}
	return nil
}

func (l *lines) has(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.got, line)
}

// Following a sandbox shows each line of each process once, those that begin
// later included, and ends with it.
func TestFollowEverything(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("before"))
	write := func(id, text string) {
		t.Helper()
		if _, err := m.WriteStdin(t.Context(), operator, "dev", id, nil, strings.NewReader(text), false); err != nil {
			t.Fatal(err)
		}
	}
	write("before", "1\n2\n3\n")
	eventually(t, "it is written", func() bool { return output(t, m, sb, api.LogOptions{ExecID: "before"}) == "1\n2\n3\n" })
	exec := func(id, script string) {
		if _, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, api.ExecRequest{ExecID: id, Shell: script})); err != nil {
			t.Error(err)
		}
	}
	exec("x1", "echo 0; echo a")
	var all, last lines
	var wg sync.WaitGroup
	for l, o := range map[*lines]api.LogOptions{&all: {Follow: true}, &last: {Follow: true, Tail: 2}} {
		wg.Go(func() {
			if err := m.Logs(t.Context(), operator, "dev", o, l.take); err != nil {
				t.Error(err)
			}
		})
	}
	seen := func(line string) {
		t.Helper()
		eventually(t, "it is seen: "+line, func() bool { return all.has(line) && last.has(line) })
	}
	eventually(t, "what was before is seen", func() bool { return all.has("x1 a") && last.has("x1 a") })
	write("before", "4\n")
	seen("before 4")
	start(t, m, sb, cat("after"))
	write("after", "5\n")
	seen("after 5")
	wg.Go(func() { exec("x2", "echo 6; read -r _ </dev/null; sleep 0.3; echo 7") })
	seen("x2 6")
	seen("x2 7")
	if err := m.RemoveProcess(t.Context(), operator, "dev", "after"); err != nil {
		t.Fatal(err)
	}
	start(t, m, sb, shell("after", "echo 8"))
	seen("after 8")
	if _, err := m.Stop(t.Context(), operator, "dev", new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for name, c := range map[string]struct {
		l    *lines
		want []string
	}{
		"all":  {&all, []string{"after 5", "after 8", "before 1", "before 2", "before 3", "before 4", "end ", "x1 0", "x1 a", "x2 6", "x2 7"}},
		"tail": {&last, []string{"after 5", "after 8", "before 4", "end ", "x1 0", "x1 a", "x2 6", "x2 7"}},
	} {
		if c.l.got[len(c.l.got)-1] != "end " {
			t.Errorf("%s: the last is %q", name, c.l.got[len(c.l.got)-1])
		}
		slices.Sort(c.l.got)
		if !slices.Equal(c.l.got, c.want) {
			t.Errorf("%s: %q, want %q", name, c.l.got, c.want)
		}
	}
}

func TestLongPoll(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	for _, id := range []string{"cat", ""} {
		begun := time.Now()
		if got := output(t, m, sb, api.LogOptions{ExecID: id, WaitMS: 100}); got != "" || time.Since(begun) < 100*time.Millisecond {
			t.Errorf("%q: nothing came, and %q was read after %s", id, got, time.Since(begun))
		}
	}
	polled := make(chan string)
	go func() { polled <- output(t, m, sb, api.LogOptions{ExecID: "cat", WaitMS: 20_000}) }()
	if _, err := m.WriteStdin(t.Context(), operator, "dev", "cat", nil, strings.NewReader("x\n"), false); err != nil {
		t.Fatal(err)
	}
	if got := <-polled; got != "x\n" {
		t.Errorf("polled %q", got)
	}
	if got := output(t, m, sb, api.LogOptions{ExecID: "cat", WaitMS: 20_000}); got != "x\n" {
		t.Errorf("polled %q", got)
	}
}

// A follower that is stuck ends when its caller goes, and one of a daemon that
// closes does too.
func TestFollowersEndInBoundedTime(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	exec, err := m.ExecStream(t.Context(), operator, "dev", permitExec(t, sb, api.ExecRequest{ExecID: "x", Shell: "exec sleep 600"}))
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Close()
	follow := func(ctx context.Context) chan error {
		ends := make(chan error, 3)
		for _, id := range []string{"cat", "x", ""} {
			go func() {
				ends <- m.Logs(ctx, operator, "dev", api.LogOptions{ExecID: id, Follow: true}, func(api.LogEntry) error { return nil })
			}()
		}
		return ends
	}
	check := func(ends chan error, want api.Code) {
		t.Helper()
		for range 3 {
			select {
			case err := <-ends:
				if code(err) != want {
					t.Errorf("a follower ended with %v, want %s", err, want)
				}
			case <-time.After(time.Minute):
				t.Error("a follower did not end")
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	check(follow(ctx), api.CodeTimeout)
	ends := follow(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	check(ends, api.CodeUnavailable)
}

//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

func TestExec(t *testing.T) {
	in := boot(t, nil)
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		name  string
		start agent.Start
		want  api.Result
	}{
		{"both streams", shell("echo out; echo err >&2"), api.Result{ExitCode: code(0), Stdout: []byte("out\n"), Stderr: []byte("err\n")}},
		{"exit code", shell("exit 7"), api.Result{ExitCode: code(7)}},
		{"signal", shell("kill -SEGV $$"), api.Result{Signal: "SEGV"}},
		{"realtime signal", shell("kill -40 $$"), api.Result{Signal: "RT6"}},
		{"default dispositions", shell("kill -TERM $$"), api.Result{Signal: "TERM"}},
		{"pipes are not ignored", shell("yes | head -n 1"), api.Result{ExitCode: code(0), Stdout: []byte("y\n")}},
		{"argv as it is", start("printf", "%s|", "a b", "", "$HOME", "ü\xff"), api.Result{ExitCode: code(0), Stdout: []byte("a b||$HOME|ü\xff|")}},
		{"stdin", agent.Start{Argv: []string{"cat"}, Stdin: bytes.Repeat([]byte("x"), 300_000), MaxOutput: 1 << 20}, api.Result{ExitCode: code(0), Stdout: bytes.Repeat([]byte("x"), 300_000)}},
		{"no stdin is its end", start("cat"), api.Result{ExitCode: code(0)}},
		{"stdin that is not read", agent.Start{Argv: []string{"true"}, Stdin: make([]byte, 4<<20)}, api.Result{ExitCode: code(0)}},
		{"cwd", agent.Start{Argv: []string{"pwd"}, Cwd: "/usr/bin"}, api.Result{ExitCode: code(0), Stdout: []byte("/usr/bin\n")}},
		{"combined", agent.Start{Argv: []string{"sh", "-c", "echo 1; echo 2 >&2; echo 3"}, Combined: true}, api.Result{ExitCode: code(0), Stdout: []byte("1\n2\n3\n")}},
		{"user", agent.Start{Argv: []string{"sh", "-c", "id -u; id -g; id -G"}, User: "1234:56"}, api.Result{ExitCode: code(0), Stdout: []byte("1234\n56\n56\n")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.start
			s.ExecID, s.Env = api.NewID("x-"), environment
			r, err := in.Exec(within(t, time.Minute), s)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(r.ExitStatus(), r.Signal) != fmt.Sprint(c.want.ExitStatus(), c.want.Signal) ||
				!bytes.Equal(r.Stdout, c.want.Stdout) || !bytes.Equal(r.Stderr, c.want.Stderr) {
				t.Fatalf("got exit %d signal %q stdout %.80q stderr %.80q", r.ExitStatus(), r.Signal, r.Stdout, r.Stderr)
			}
			if r.ExecID != s.ExecID || r.Truncated || r.StdoutInfo.Kept != int64(len(r.Stdout)) {
				t.Fatalf("odd result %+v", r.StdoutInfo)
			}
		})
	}
}

func TestExecRefusals(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	in.run(t, "true")
	for _, c := range []struct {
		name  string
		start agent.Start
		code  api.Code
		field string
	}{
		{"missing in PATH", start("no-such-program"), api.CodeCommandNotFound, ""},
		{"missing path", start("/no/such/program"), api.CodeCommandNotFound, ""},
		{"missing interpreter", start(write("script", "#!/no/interpreter\n", 0o755)), api.CodeCommandNotFound, ""},
		{"not executable", start(write("text", "hello", 0o644)), api.CodeNotExecutable, ""},
		{"no format", start(write("noise", "hello", 0o755)), api.CodeNotExecutable, ""},
		{"directory", start(dir), api.CodeNotExecutable, ""},
		{"empty argv", start(), api.CodeInvalid, "argv"},
		{"empty program", start(""), api.CodeInvalid, "argv"},
		{"NUL in argv", start("echo", "a\x00b"), api.CodeInvalid, "argv"},
		{"NUL in env", agent.Start{Argv: []string{"true"}, Env: []string{"A=b\x00c"}}, api.CodeInvalid, "env"},
		{"no variable", agent.Start{Argv: []string{"true"}, Env: []string{"novalue"}}, api.CodeInvalid, "env"},
		{"relative cwd", agent.Start{Argv: []string{"true"}, Cwd: "usr"}, api.CodeInvalid, "cwd"},
		{"missing cwd", agent.Start{Argv: []string{"true"}, Cwd: "/no/such"}, api.CodeInvalid, "cwd"},
		{"file as cwd", agent.Start{Argv: []string{"true"}, Cwd: "/etc/passwd"}, api.CodeInvalid, "cwd"},
		{"unknown user", agent.Start{Argv: []string{"true"}, User: "nobody-of-that-name"}, api.CodeInvalid, "user"},
		{"unknown group", agent.Start{Argv: []string{"true"}, User: "0:nobody-of-that-name"}, api.CodeInvalid, "user"},
		{"the agent's uid", agent.Start{Argv: []string{"true"}, User: "4294967000"}, api.CodeInvalid, "user"},
		{"huge environment", agent.Start{Argv: []string{"true"}, Env: []string{"A=" + strings.Repeat("x", 2<<20)}}, api.CodeTooLarge, "env"},
		{"huge argument", start("true", strings.Repeat("x", 2<<20)), api.CodeTooLarge, "argv"},
		{"terminal", agent.Start{Argv: []string{"true"}, TTY: true}, api.CodeInvalid, "tty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.start
			s.ExecID = api.NewID("x-")
			if s.Env == nil {
				s.Env = environment
			}
			r, err := in.Exec(within(t, time.Minute), s)
			var ce *api.Error
			if !errors.As(err, &ce) || ce.Code != c.code || ce.Field != c.field {
				t.Fatalf("got %+v and %#v, want code %q field %q", r, err, c.code, c.field)
			}
		})
	}
	ps, err := in.Processes(t.Context())
	if err != nil || len(ps) != 1 {
		t.Fatalf("programs that were not executed are on record: %v, %v", ps, err)
	}
}

func TestSameNameTwiceIsRefused(t *testing.T) {
	in := boot(t, nil)
	s := shell(":")
	if _, err := in.Exec(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Exec(t.Context(), s); !errors.Is(err, api.ErrExists) {
		t.Fatalf("got %v", err)
	}
}

func TestTimeoutKillsTheTreeAndKeepsOutput(t *testing.T) {
	for name, tune := range map[string]func(*agent.Config, *execCmd){"walk": nil, "cgroups": withGroups(t)} {
		t.Run(name, func(t *testing.T) {
			in := boot(t, tune)
			s := shell("echo partial; sleep 1000 & (setsid sleep 1001 &) ; wait")
			s.Timeout = 300 * time.Millisecond
			r, err := in.Exec(within(t, time.Minute), s)
			if err != nil || !r.TimedOut || r.ExitCode != nil || r.Signal != "KILL" || string(r.Stdout) != "partial\n" {
				t.Fatalf("got %+v, %v", r, err)
			}
			// The walk cannot find what has left the session and lost its parents.
			want := "0"
			if name == "walk" {
				want = "1"
			}
			if got := in.run(t, "ps -eo args | grep -c '^sleep 100' || true"); got != want {
				t.Fatalf("%s processes are left, want %s", got, want)
			}
		})
	}
}

func TestBackgroundChildDoesNotHoldTheResult(t *testing.T) {
	in := boot(t, nil)
	r, err := in.Exec(within(t, time.Minute), shell("echo done; sleep 1000 &"))
	if err != nil || !r.OK() || string(r.Stdout) != "done\n" {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err = in.Exec(within(t, time.Minute), shell("yes & echo done"))
	if err != nil || !r.OK() {
		t.Fatalf("got exit %d, %v", r.ExitStatus(), err)
	}
	if err := in.Signal(t.Context(), r.ExecID, 9); err != nil {
		t.Fatal(err)
	}
}

func TestOutputIsCutInTheMiddle(t *testing.T) {
	in := boot(t, nil)
	s := shell("seq 1 200000")
	s.MaxOutput = 1000
	r, err := in.Exec(t.Context(), s)
	if err != nil || !r.OK() || !r.Truncated {
		t.Fatalf("got %+v, %v", r, err)
	}
	const total = 1288895
	if r.StdoutInfo.Kept != 1000 || r.StdoutInfo.Dropped != total-1000 {
		t.Fatalf("counts %+v", r.StdoutInfo)
	}
	mark := fmt.Sprintf("[cloche: %d bytes dropped]\n", total-1000) // the head ends with a newline
	head, tail, ok := strings.Cut(string(r.Stdout), mark)
	if !ok || len(head) != 500 || len(tail) != 500 || !strings.HasPrefix(head, "1\n2\n3\n") || !strings.HasSuffix(tail, "199999\n200000\n") {
		t.Fatalf("output %.700q", r.Stdout)
	}
	if r.Output() != string(r.Stdout) {
		t.Fatal("the output of one stream is not its output")
	}
}

// TestOutputKeepsTheOrder: each piece is written after the one before it is on record,
// because pieces that wait in two pipes at once have no order.
func TestOutputKeepsTheOrder(t *testing.T) {
	in := boot(t, nil)
	next := fifo(t)
	s := shell("for i in 1 2 3; do echo o$i; read x <$1; echo e$i >&2; read x <$1; done")
	s.Argv = append(s.Argv, "sh", next.Name())
	const want = "o1\ne1\no2\ne2\no3\ne3\n"
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	var pacer sync.WaitGroup
	defer pacer.Wait()
	defer cancel()
	pacer.Go(func() {
		// Until the program is on record there is nothing to follow.
		for seen := 0; ctx.Err() == nil && seen < len(want); {
			_ = in.Follow(ctx, s.ExecID, agent.FollowOptions{Since: int64(seen), Follow: true}, func(k agent.Chunk) error {
				seen += len(k.Data)
				_, err := next.WriteString("\n")
				return err
			})
		}
	})
	r, err := in.Exec(ctx, s)
	if err != nil || r.Output() != want {
		t.Fatalf("got %q, %v", r.Output(), err)
	}
}

func TestCanceledCallLeavesTheProcess(t *testing.T) {
	in := boot(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	s := shell("echo begun; read line; echo end")
	s.Stdin = nil
	st, err := in.Stream(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "begun\n" {
		t.Fatalf("got %q, %v", ev.Data, err)
	}
	cancel()
	if _, err := st.Recv(); api.CodeOf(err) != api.CodeCanceled {
		t.Fatalf("got %v", err)
	}
	st.Close()
	x := shell("sleep 1000")
	x.Repeatable = true // so that a call that ended before it began costs nothing
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := in.Exec(ctx, x)
		cancel()
		if api.CodeOf(err) != api.CodeTimeout {
			t.Fatalf("got %v", err)
		}
		ps, err := in.Processes(t.Context())
		if err == nil && len(ps) == 1 && wait < time.Minute {
			continue
		}
		if err != nil || len(ps) != 2 || !ps[1].Running || ps[1].ExecID != x.ExecID {
			t.Fatalf("got %+v, %v", ps, err)
		}
		return
	}
}

func TestManyAtOnce(t *testing.T) {
	in := boot(t, nil)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			want := strings.Repeat(fmt.Sprint(i, " "), 1000)
			s := start("cat")
			s.Stdin = []byte(want)
			r, err := in.Exec(within(t, 60*time.Second), s)
			if err != nil || string(r.Stdout) != want {
				t.Errorf("%d: %.80q, %v", i, r.Stdout, err)
			}
		})
	}
	wg.Wait()
}

func TestOrphansAreReaped(t *testing.T) {
	in := boot(t, nil)
	in.run(t, "for i in $(seq 50); do (true &) ; done; (sleep 0.05 &)")
	for end := time.Now().Add(time.Minute); ; {
		got := in.run(t, "ps -eo stat | grep -c Z || true")
		if got == "0" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s zombies are left", got)
		}
	}
}

func TestStream(t *testing.T) {
	in := boot(t, nil)
	s := shell("trap 'echo hup' HUP; echo ready; cat; echo end >&2; exit 3")
	st, err := in.Stream(within(t, time.Minute), s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "ready\n" || ev.Seq != 0 {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if _, err := st.Write([]byte("ping\n")); err != nil {
		t.Fatal(err)
	}
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "ping\n" || ev.Seq != 1 {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "end\n" || ev.Stream != api.Stderr {
		t.Fatalf("got %+v, %v", ev, err)
	}
	ev, err := st.Recv()
	if err != nil || ev.Exit == nil || ev.Exit.ExitStatus() != 3 {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if _, err := st.Recv(); err != io.EOF {
		t.Fatalf("got %v", err)
	}
}

func TestStreamIsLosslessForASlowReader(t *testing.T) {
	in := boot(t, nil)
	st, err := in.Stream(within(t, 60*time.Second), shell("seq 1 1000000"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var got bytes.Buffer
	for n := 0; ; n++ {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			break
		}
		if ev.Seq != uint64(n) {
			t.Fatalf("event %d has number %d", n, ev.Seq)
		}
		got.Write(ev.Data)
	}
	if got.Len() != 6888896 || !strings.HasSuffix(got.String(), "\n1000000\n") {
		t.Fatalf("%d bytes", got.Len())
	}
}

func TestDetachedProcessIsNotBlocked(t *testing.T) {
	in := boot(t, func(c *agent.Config, _ *execCmd) { c.RingBytes = 64 << 10 })
	st, err := in.Stream(within(t, time.Minute), shell("seq 1 300000; sleep 0.3; echo finished >&2"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	st.Close()
	var ps []api.Process
	for end := time.Now().Add(time.Minute); ; {
		if ps, err = in.Processes(t.Context()); err != nil || time.Now().After(end) {
			t.Fatalf("got %+v, %v", ps, err)
		}
		if !ps[0].Running {
			break
		}
	}
	var out, errs bytes.Buffer
	var gap, next int64
	err = in.Logs(t.Context(), api.LogOptions{ExecID: ps[0].ExecID}, func(e api.LogEntry) error {
		if e.Stream == api.Stderr {
			errs.Write(e.Data)
			return nil
		}
		if e.Gap > 0 {
			gap, next = e.Gap, e.Offset
			return nil
		}
		if e.Offset != next {
			t.Errorf("offset %d, want %d", e.Offset, next)
		}
		next += int64(len(e.Data))
		out.Write(e.Data)
		return nil
	})
	const total = 1988895
	// Both streams share what is kept.
	if err != nil || gap != total+int64(errs.Len())-128<<10 || next != total || !strings.HasSuffix(out.String(), "\n300000\n") || errs.String() != "finished\n" {
		t.Fatalf("gap %d next %d, %d bytes, stderr %q, %v", gap, next, out.Len(), &errs, err)
	}
	var lines bytes.Buffer
	err = in.Logs(t.Context(), api.LogOptions{Stream: api.Stdout, Tail: 2}, func(e api.LogEntry) error {
		lines.Write(e.Data)
		return nil
	})
	if err != nil || lines.String() != "299999\n300000\n" {
		t.Fatalf("tail %q, %v", &lines, err)
	}
}

func TestTerminal(t *testing.T) {
	in := boot(t, nil)
	s := shell("stty size; echo TERM=$TERM; test -t 0 && echo tty; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.1; done")
	s.TTY, s.Rows, s.Cols = true, 33, 99
	st, err := in.Stream(within(t, time.Minute), s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var got bytes.Buffer
	for !strings.Contains(got.String(), "ready") {
		ev, err := st.Recv()
		if err != nil || ev.Exit != nil {
			t.Fatalf("after %q: %+v, %v", &got, ev, err)
		}
		got.Write(ev.Data)
	}
	if !strings.Contains(got.String(), "33 99") || !strings.Contains(got.String(), "TERM=xterm\r\n") || !strings.Contains(got.String(), "tty") {
		t.Fatalf("got %q", &got)
	}
	if err := st.Resize(44, 111); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			if ev.Exit.ExitStatus() != 5 || !strings.Contains(got.String(), "44 111") {
				t.Fatalf("exit %d after %q", ev.Exit.ExitStatus(), &got)
			}
			return
		}
		got.Write(ev.Data)
	}
}

func TestTerminalInterrupt(t *testing.T) {
	in := boot(t, nil)
	s := start("cat")
	s.TTY, s.Rows, s.Cols = true, 24, 80
	st, err := in.Stream(within(t, time.Minute), s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			if ev.Exit.Signal != "INT" {
				t.Fatalf("got %+v", ev.Exit)
			}
			return
		}
	}
}

func TestSignals(t *testing.T) {
	in := boot(t, nil)
	st, err := in.Stream(within(t, time.Minute), shell("trap 'echo got; exit 4' USR1; echo ready; while :; do sleep 0.05; done"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := st.Signal(10); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			// The group gets it: sleep may end by it before the shell does.
			if ev.Exit.ExitStatus() != 4 {
				t.Fatalf("got %+v", ev.Exit)
			}
			break
		}
	}
	if err := in.Signal(t.Context(), "no-such", 15); !errors.Is(err, api.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	r, err := in.Exec(t.Context(), shell(":"))
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Signal(t.Context(), r.ExecID, 15); api.CodeOf(err) != api.CodeState {
		t.Fatalf("got %v", err)
	}
	if err := in.Signal(t.Context(), r.ExecID, 99); !errors.Is(err, api.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
}

func TestTerminate(t *testing.T) {
	in := boot(t, nil)
	quick, err := in.Stream(within(t, time.Minute), shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"))
	if err != nil {
		t.Fatal(err)
	}
	stubborn, err := in.Stream(within(t, time.Minute), shell("trap '' TERM; echo ready; while :; do sleep 0.02; done"))
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []*agent.Stream{quick, stubborn} {
		if _, err := st.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Terminate(within(t, time.Minute), 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	ps, err := in.Processes(t.Context())
	if err != nil || len(ps) != 2 {
		t.Fatalf("got %+v, %v", ps, err)
	}
	_, err = in.Exec(t.Context(), shell(":"))
	if api.CodeOf(err) != api.CodeState {
		t.Fatalf("got %v", err)
	}
	for st, want := range map[*agent.Stream]int{quick: 0, stubborn: 137} {
		for {
			ev, err := st.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if ev.Exit != nil {
				if ev.Exit.ExitStatus() != want {
					t.Fatalf("got %+v, want %d", ev.Exit, want)
				}
				break
			}
		}
	}
	if err := in.Terminate(within(t, time.Minute), time.Second); err != nil {
		t.Fatalf("a second terminate: %v", err)
	}
}

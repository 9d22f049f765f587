//go:build unix

package cli

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// childMark makes this test program a command line of its own, so that it can be
// put under a terminal of its own.
const childMark = "CLOCHE_CLI_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMark) == "" {
		os.Exit(m.Run())
	}
	os.Exit(Main(context.Background(), os.Args[1:], command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, command.Env{Version: "v0", Getenv: os.LookupEnv}))
}

// terminalRun is a command line under a real terminal.
type terminalRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	before *term.State // of the terminal, before the command line had it

	mu   sync.Mutex
	seen string        // guarded by mu
	more chan struct{} // gets one when seen has grown or ended
}

// patience is how long something that must happen may take.
const patience = 20 * time.Second

func underTerminal(t *testing.T, home string, size pty.Winsize, args ...string) *terminalRun {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	master, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer tty.Close()
	if err := pty.Setsize(master, &size); err != nil {
		t.Fatal(err)
	}
	r := &terminalRun{t: t, master: master, more: make(chan struct{}, 1)}
	if r.before, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command(exe, args...)
	r.cmd.Env = append(os.Environ(), childMark+"=1", client.EnvHome+"="+home, client.EnvHost+"=", "TERM=xterm-256color")
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = tty, tty, tty
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			r.mu.Lock()
			r.seen += string(buf[:n])
			r.mu.Unlock()
			select {
			case r.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		_ = master.Close()
		<-done
	})
	return r
}

// expect waits for text on the terminal and returns all that came up to it.
func (r *terminalRun) expect(text string) string {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		before, after, found := strings.Cut(r.seen, text)
		if found {
			r.seen = after
		}
		seen := r.seen
		r.mu.Unlock()
		if found {
			return before + text
		}
		select {
		case <-r.more:
		case <-timeout:
			r.t.Fatalf("%q did not come; the terminal shows %q", text, seen)
		}
	}
}

func (r *terminalRun) send(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.master, text); err != nil {
		r.t.Fatal(err)
	}
}

// exit waits for the end and checks its status.
func (r *terminalRun) exit(status int) {
	r.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		r.t.Fatalf("it does not end; the terminal shows %q", r.seen)
	}
	if got := r.cmd.ProcessState.ExitCode(); got != status {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.t.Errorf("status %d, want %d; the terminal shows %q", got, status, r.seen)
	}
}

// restored checks that the terminal is as it was before.
func (r *terminalRun) restored() {
	r.t.Helper()
	after, err := term.GetState(int(r.master.Fd()))
	if err != nil {
		r.t.Fatal(err)
	}
	if *after != *r.before {
		r.t.Error("the terminal was left in another state than it was in")
	}
}

// ends waits for the end, and checks what it leaves.
func (r *terminalRun) ends(status int) {
	r.t.Helper()
	r.exit(status)
	r.restored()
}

// repl is a process with a terminal that has written something.
func repl(f *fakeDaemon, output string) {
	f.processes = []api.Process{{
		ExecID: "p-1", Name: "repl", Argv: []string{"python3"}, State: api.ProcessRunning, Running: true, TTY: true, Managed: true,
		StdinOpen: true, StartedAt: time.Now(), Position: int64(len(output)),
	}}
	f.logs = map[string][]api.LogEntry{"p-1": {{ExecID: "p-1", Stream: api.Stdout, Data: api.Bytes(output)}}}
}

// echoing plays a program that repeats what is typed in capitals, until q.
func echoing(p *fakeProgram, _ api.AttachRequest) api.Result {
	buf := make([]byte, 64)
	for {
		n, err := p.stdin.Read(buf)
		if err != nil {
			<-p.ctx.Done()
			return exited(0)
		}
		p.write(api.FrameStdout, "<"+strings.ToUpper(string(buf[:n]))+">")
		if string(buf[:n]) == "q" {
			return exited(3)
		}
	}
}

var size24x80 = pty.Winsize{Rows: 24, Cols: 80}

// besideRepl runs a command line under a terminal, beside a repl that has written
// something and is played by play.
func besideRepl(t *testing.T, play func(*fakeProgram, api.AttachRequest) api.Result, output string, args ...string) (*fakeDaemon, *terminalRun) {
	t.Helper()
	f := newFake(t)
	f.attach = play
	repl(f, output)
	return f, underTerminal(t, f.listen(), size24x80, args...)
}

func TestAttachOnATerminal(t *testing.T) {
	const output = ">>> 6*7\r\n42\r\n>>> "
	f, r := besideRepl(t, echoing, output, "attach", "box", "repl")
	r.expect("\x1b[1;1H>>> 6*7")
	r.expect("\x1b[2;1H42")
	r.expect("\x1b[3;5H")
	f.mu.Lock()
	if a := f.attached; a.Since == nil || *a.Since != int64(len(output)) || !a.Write || a.Exclusive || a.Rows != 24 || a.Cols != 80 {
		t.Errorf("attached with %+v", a)
	}
	f.mu.Unlock()
	r.send("a\x03") // an interrupt is a key for the process
	r.expect("<A\x03>")
	r.send("\x10")
	r.expect("<\x10>") // after a moment, for no ctrl-q followed
	r.send("b\x10\x11never")
	r.expect("detached; come back with: cloche attach box p-1")
	r.ends(0)
}

func TestAttachGivesTheStatus(t *testing.T) {
	_, r := besideRepl(t, echoing, "$ ", "attach", "--detach-keys", "", "box/repl")
	r.expect("\x1b[1;3H")
	r.send("\x10\x11")
	r.expect("<\x10\x11>")
	r.send("q")
	r.expect("<Q>")
	r.ends(3)
}

// TestAttachToAFullScreenProgram: it is made to draw itself, and its terminal
// modes do not stay behind.
func TestAttachToAFullScreenProgram(t *testing.T) {
	f := newFake(t)
	sizes := make(chan api.Size, 64)
	f.attach = func(p *fakeProgram, _ api.AttachRequest) api.Result {
		for {
			select {
			case s := <-p.resizes:
				sizes <- s
			case <-p.ctx.Done():
				return exited(0)
			}
		}
	}
	repl(f, "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[4;5Hfull screen")
	r := underTerminal(t, f.listen(), size24x80, "attach", "box", "p-1")
	r.expect("\x1b[?25l\x1b[?1049h")
	r.expect("\x1b[4;1H    full screen")
	next := func() api.Size {
		t.Helper()
		select {
		case s := <-sizes:
			return s
		case <-time.After(patience):
			t.Fatalf("no resize came; the terminal shows %q", r.seen)
		}
		panic("unreachable")
	}
	for _, want := range []uint16{24, 23, 24} {
		if s := next(); s != (api.Size{Rows: want, Cols: 80}) {
			t.Errorf("resized to %+v, want %d rows", s, want)
		}
	}
	if err := pty.Setsize(r.master, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	if s := next(); s != (api.Size{Rows: 30, Cols: 100}) {
		t.Errorf("resized to %+v, want 30 rows of 100", s)
	}
	r.send("\x10\x11")
	r.expect("\x1b[?25h\x1b[?1049l")
	r.expect("detached")
	r.ends(0)
}

func TestAttachReadOnlyOnATerminal(t *testing.T) {
	f, r := besideRepl(t, func(p *fakeProgram, _ api.AttachRequest) api.Result {
		p.write(api.FrameStdout, "ready")
		if in, _ := io.ReadAll(p.stdin); len(in) > 0 {
			t.Errorf("%q was typed into a process that is only read", in)
		}
		return exited(0)
	}, "$ ", "attach", "--read-only", "box", "repl")
	r.expect("ready")
	r.send("typed\x03")
	r.expect("detached")
	r.ends(0)
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.attached; a.Write || a.Rows != 0 {
		t.Errorf("attached with %+v: a reader neither writes nor resizes", a)
	}
}

// TestTerminalThatIsClosed: the end of the terminal is no end of the process.
func TestTerminalThatIsClosed(t *testing.T) {
	_, r := besideRepl(t, echoing, "$ ", "attach", "box", "repl")
	r.expect("\x1b[1;3H")
	r.send("x")
	r.expect("<X>")
	_ = r.cmd.Process.Signal(syscall.SIGHUP)
	r.expect("detached")
	r.ends(129)
}

func TestShellOnATerminal(t *testing.T) {
	f := newFake(t)
	f.attach = echoing
	home := f.listen()
	r := underTerminal(t, home, size24x80, "shell", "box")
	r.send("x")
	r.expect("<X>")
	f.mu.Lock()
	s := f.started
	if !s.TTY || s.Rows != 24 || s.Cols != 80 || s.Name != "shell" || s.Env["TERM"] != "xterm-256color" || !strings.HasPrefix(s.ExecID, "shell-") {
		t.Errorf("started %+v", s)
	}
	if a := f.attached; a.Since == nil || *a.Since != 0 || !a.Write {
		t.Errorf("attached with %+v", a)
	}
	f.mu.Unlock()
	r.send("q")
	r.ends(3)
	if !f.asked("DELETE /v1/sandboxes/box/processes/" + s.ExecID) {
		t.Error("a shell that ended left its record")
	}

	r = underTerminal(t, home, size24x80, "shell", "--detach-keys", "ctrl-]", "box")
	r.send("x")
	r.expect("<X>")
	r.send("\x1d")
	r.expect("come back with: cloche attach box shell-")
	r.exit(0)
	f.mu.Lock()
	id := f.started.ExecID
	f.mu.Unlock()
	if f.asked("DELETE /v1/sandboxes/box/processes/" + id) {
		t.Error("a shell that was left is removed")
	}

	f.processes = []api.Process{{ExecID: id, Name: "shell", State: api.ProcessRunning, TTY: true, Managed: true, StdinOpen: true}}
	r = underTerminal(t, home, size24x80, "attach", "box", "shell")
	r.send("x")
	r.expect("<X>")
	r.send("q")
	r.exit(3)
	if !f.asked("DELETE /v1/sandboxes/box/processes/" + id) {
		t.Error("a shell that was come back to left its record when it ended")
	}
}

// TestShellOfAnOldSandbox: where shells cannot outlive their client, they still
// open.
func TestShellOfAnOldSandbox(t *testing.T) {
	f := newFake(t)
	f.refuse["POST /sandboxes/box/processes"] = api.Errorf(api.CodeUnsupported, "the sandbox was made by an older cloche")
	f.program = func(p *fakeProgram) api.Result {
		p.write(api.FrameStdout, "sh$ ")
		return exited(0)
	}
	r := underTerminal(t, f.listen(), size24x80, "shell", "box")
	r.expect("made by an older cloche: the shell will not outlive this program")
	r.expect("sh$ ")
	r.ends(0)
}

func TestPsFitsTheTerminal(t *testing.T) {
	f := newFake(t)
	f.processes = []api.Process{{
		ExecID: "p-1", State: api.ProcessRunning, Running: true, StartedAt: time.Now(),
		Argv: []string{strings.Repeat("long ", 30)}, LastStderr: strings.Repeat("words ", 30),
	}}
	r := underTerminal(t, f.listen(), size24x80, "ps", "box")
	r.exit(0)
	for line := range strings.SplitSeq(strings.TrimSpace(r.expect("\r\np-1")+r.expect("\r\n")), "\r\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("a line of %d characters: %q", n, line)
		}
	}
}

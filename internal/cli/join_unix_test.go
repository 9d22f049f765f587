//go:build unix

package cli

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// server is a process that speaks a protocol over its input and output.
func server(f *fakeDaemon) {
	f.processes = []api.Process{{
		ExecID: "mcp", Argv: []string{"node"}, State: api.ProcessRunning, Running: true, Managed: true, StdinOpen: true, Position: 40,
	}}
}

func TestAttachByPipes(t *testing.T) {
	f := newFake(t)
	server(f)
	f.attach = func(p *fakeProgram, _ api.AttachRequest) api.Result {
		in := make([]byte, 6)
		if _, err := io.ReadFull(p.stdin, in); err != nil {
			t.Error(err)
		}
		p.write(api.FrameStdout, "got "+string(in))
		p.write(api.FrameStderr, "log\n")
		return exited(5)
	}
	got := runCLI(t, homeEnv(f.listen()), strings.NewReader("\x10\x11abc\n"), nil, "attach", "--exclusive", "box", "mcp")
	if got != (result{5, "got \x10\x11abc\n", "log\n"}) {
		t.Errorf("%+v", got)
	}
	if a := f.attached; !a.Exclusive || !a.Write || a.Since != nil || a.Rows != 0 {
		t.Errorf("attached with %+v", a)
	}
}

// TestTheEndOfInput: what has ended here goes on there, unless it was asked for.
func TestTheEndOfInput(t *testing.T) {
	for flag, closes := range map[string]bool{"--close-stdin": true, "--close-stdin=false": false} {
		f := newFake(t)
		server(f)
		f.attach = func(p *fakeProgram, _ api.AttachRequest) api.Result {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.ReadAll(p.stdin)
			}()
			if closes {
				<-ended
			}
			// Otherwise the client would have closed it before it sees this exit, and
			// a message after a close does not count.
			p.write(api.FrameStdout, "still here")
			select {
			case <-ended:
				p.write(api.FrameStdout, ", closed")
			default:
			}
			return exited(0)
		}
		got := runCLI(t, homeEnv(f.listen()), strings.NewReader("x"), nil, "attach", flag, "box", "mcp")
		if want := map[bool]string{true: "still here, closed", false: "still here"}[closes]; got.out != want || got.status != 0 {
			t.Errorf("%s: %+v, want %q", flag, got, want)
		}
	}
}

// TestAnInterruptLeaves: where no terminal passes keys on, it ends the attach and
// nothing else.
func TestAnInterruptLeaves(t *testing.T) {
	for sig, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		f := newFake(t)
		server(f)
		f.attach = func(p *fakeProgram, _ api.AttachRequest) api.Result {
			in := make([]byte, 1)
			_, _ = p.stdin.Read(in) // says that the client passes things on
			_ = syscall.Kill(os.Getpid(), sig)
			<-p.ctx.Done()
			select {
			case s := <-p.signals:
				t.Errorf("%s was sent to the process", s)
			default:
			}
			return exited(0)
		}
		got := runCLI(t, homeEnv(f.listen()), strings.NewReader("x"), nil, "attach", "box", "mcp")
		if got.status != status || got.err != "cloche: detached; come back with: cloche attach box mcp\n" {
			t.Errorf("%v: %+v", sig, got)
		}
	}
}

func TestAttachAsked(t *testing.T) {
	f := newFake(t)
	server(f)
	f.processes[0].StdinOpen = false
	f.processes = append(f.processes, api.Process{ExecID: "old", State: api.ProcessExited, ExitCode: code(4), TTY: true})
	f.attach = func(p *fakeProgram, r api.AttachRequest) api.Result { return exited(4) }
	home := f.listen()
	do := func(args ...string) result {
		t.Helper()
		return runCLI(t, homeEnv(home), strings.NewReader("x"), nil, append([]string{"attach"}, args...)...)
	}
	if do("--since", "-10", "box", "mcp"); f.attached.Write || f.attached.Since == nil || *f.attached.Since != -10 {
		t.Errorf("attached to a closed input with %+v", f.attached)
	}
	if got := do("box", "old"); got.status != 4 || !strings.Contains(got.err, `process old has ended; "cloche logs box old" shows its output`) || f.attached.Write {
		t.Errorf("one that has ended: %+v, %+v", got, f.attached)
	}
	if got := do("--json", "--since", "0", "box", "old"); got.status != 4 || !strings.HasPrefix(got.out, `{"exit_code":4,`) || got.err != "" {
		t.Errorf("with --json: %+v", got)
	}
	for args, says := range map[string]string{"--exclusive --read-only box mcp": "do not go together", "--detach-keys ctrl box mcp": "a key that there is not", "box none": "no process none"} {
		if got := do(strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	f.refuse["STREAM"] = api.Errorf(api.CodeConflict, "the input of process mcp is held by another attach")
	f.processes[0].StdinOpen = true
	if got := do("box", "mcp"); got.status != 125 || !strings.Contains(got.err, "held by another attach\nhint: join it with --read-only") {
		t.Errorf("an input that is taken: %+v", got)
	}
}

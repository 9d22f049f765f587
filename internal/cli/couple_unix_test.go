//go:build unix

package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// TestSignals sends this very process signals while a command runs.
func TestSignals(t *testing.T) {
	for name, tc := range map[string]struct {
		send []syscall.Signal
		want string
	}{
		"TERM":                       {[]syscall.Signal{syscall.SIGTERM}, "TERM"},
		"HUP":                        {[]syscall.Signal{syscall.SIGHUP}, "HUP"},
		"USR1":                       {[]syscall.Signal{syscall.SIGUSR1}, "USR1"},
		"an interrupt":               {[]syscall.Signal{syscall.SIGINT}, "INT"},
		"a second interrupt kills":   {[]syscall.Signal{syscall.SIGINT, syscall.SIGINT}, "INT KILL"},
		"another signal in between":  {[]syscall.Signal{syscall.SIGINT, syscall.SIGUSR2, syscall.SIGINT}, "INT USR2 KILL"},
		"a resize without terminals": {[]syscall.Signal{syscall.SIGWINCH, syscall.SIGTERM}, "TERM"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.program = func(p *fakeProgram) api.Result {
				_, _ = io.ReadAll(p.stdin) // its end says that the client passes things on
				var got []string
				for _, s := range tc.send {
					if err := syscall.Kill(os.Getpid(), s); err != nil {
						t.Error(err)
					}
					if s != syscall.SIGWINCH {
						got = append(got, <-p.signals)
					}
				}
				p.write(api.FrameStdout, strings.Join(got, " "))
				return api.Result{Signal: got[len(got)-1]}
			}
			got := runCLI(t, homeEnv(f.listen()), nil, nil, "run", "--", "x")
			last := tc.want[strings.LastIndex(tc.want, " ")+1:]
			if got.out != tc.want || got.status != 128+api.SignalNumber(last) {
				t.Errorf("got %+v, want %q", got, tc.want)
			}
		})
	}
}

func TestThirdInterruptGivesUp(t *testing.T) {
	f := newFake(t)
	f.program = func(p *fakeProgram) api.Result { // it ignores everything
		_, _ = io.ReadAll(p.stdin)
		for _, want := range []string{"INT", "KILL"} {
			_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
			if got := <-p.signals; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-p.ctx.Done()
		return exited(0)
	}
	if got := runCLI(t, homeEnv(f.listen()), nil, nil, "exec", "box", "--", "x"); got.status != 130 {
		t.Errorf("%+v, want 130", got)
	}
}

func TestAnOutputThatNobodyReads(t *testing.T) {
	f := newFake(t)
	f.program = func(p *fakeProgram) api.Result {
		p.write(api.FrameStdout, "x")
		<-p.ctx.Done()
		return exited(0)
	}
	home := f.listen()
	var errOut bytes.Buffer
	status := Main(t.Context(), []string{"run", "--home", home, "--", "yes"}, command.Streams{Out: brokenWriter{}, Err: &errOut}, command.Env{Getenv: func(string) (string, bool) { return "", false }})
	if status != 141 || errOut.Len() != 0 {
		t.Errorf("status %d, %q; want 141 and silence", status, errOut.String())
	}
}

// TestInputThatNeverEnds: an input that is left open holds nothing up.
func TestInputThatNeverEnds(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	if got := runCLI(t, homeEnv(newFake(t).listen()), r, nil, "run", "--", "true"); got.status != 0 {
		t.Errorf("%+v", got)
	}
}

//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

const (
	// wicked wipes the screen, names the window, and has the terminal type.
	wicked = "\x1b[2J\x1b]0;owned\x07\x1b[6n\x1b[32mgreen\x1b[0m\r\n"
	tamed  = "^[[2J^[]0;owned^G^[[6n\x1b[32mgreen\x1b[0m"
)

// TestForeignOutputOnATerminal: what a sandbox wrote cannot act on the terminal
// of its reader, unless the user asks for that.
func TestForeignOutputOnATerminal(t *testing.T) {
	for name, args := range map[string][]string{
		"logs":   {"logs", "box", "web"},
		"attach": {"attach", "--since", "0", "box", "web"},
		"exec":   {"exec", "box", "--", "wicked"},
	} {
		for _, raw := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				f := newFake(t)
				f.processes = managed()
				f.logs = map[string][]api.LogEntry{"p-1": {
					{ExecID: "p-1", Stream: api.Stdout, Data: api.Bytes(wicked[:6])},
					{ExecID: "p-1", Stream: api.Stdout, Position: 6, Offset: 6, Data: api.Bytes(wicked[6:])},
				}}
				play := func(p *fakeProgram) api.Result {
					for _, b := range []byte(wicked) {
						p.write(api.FrameStdout, string(b))
					}
					return exited(0)
				}
				f.attach = func(p *fakeProgram, _ api.AttachRequest) api.Result { return play(p) }
				f.program = play
				args, want := args, tamed
				if raw {
					args, want = append([]string{args[0], "--raw"}, args[1:]...), strings.TrimSuffix(wicked, "\r\n")
				}
				r := underTerminal(t, f.listen(), size24x80, args...)
				r.expect(want)
				r.exit(0)
			})
		}
	}
}

// TestForeignOutputInAPipe is exact, whatever it is.
func TestForeignOutputInAPipe(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	f.logs = map[string][]api.LogEntry{"p-1": {{ExecID: "p-1", Stream: api.Stdout, Data: api.Bytes(wicked + "\xff\x00\x1b[")}}}
	if got := runCLI(t, homeEnv(f.listen()), nil, nil, "logs", "box", "web"); got.out != wicked+"\xff\x00\x1b[" {
		t.Errorf("%q", got.out)
	}
}

// TestForeignTextInJSON: JSON leaves some controls as they are.
func TestForeignTextInJSON(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	f.processes[0].LastStderr = "\u009b2J\x7fü"
	home := f.listen()
	for _, args := range [][]string{{"ps", "--json", "box"}, {"inspect", "box", "--processes"}} {
		got := runCLI(t, homeEnv(home), nil, nil, args...)
		if args[0] == "ps" && !strings.Contains(got.out, `\u009b2J\u007fü`) || strings.ContainsFunc(got.out, func(r rune) bool { return r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

package langbot

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxOutput is how much of each stream of an exec is kept.
	maxOutput = 1 << 20
	// maxExec keeps an exec from ending after its caller gave up, which it does after
	// five minutes.
	maxExec = 295
	// startIn becomes a program in a directory.
	startIn = `cd -- "$1" 2>/dev/null || { mkdir -p -- "$1" && cd -- "$1"; } || exit; shift; exec "$@"`
)

// execResult is what became of an exec.
type execResult struct {
	SessionID   string `json:"session_id"`
	BackendName string `json:"backend_name"`
	Status      string `json:"status"`
	ExitCode    *int   `json:"exit_code"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	DurationMS  int64  `json:"duration_ms"`
	// Adjusted are values of the exec that the operator's rules changed.
	Adjusted []api.Adjustment `json:"adjusted,omitempty"`
}

func (s *Server) exec(ctx context.Context, p placement, spec boxSpec) (execResult, error) {
	if spec.Cmd == "" {
		return execResult{}, failed(classValidation, "cmd: it is empty")
	}
	x, done, err := s.obtain(ctx, p, spec)
	if err != nil {
		return execResult{}, err
	}
	defer done()
	seconds := min(int64(spec.TimeoutSec), maxExec)
	req := api.ExecRequest{
		Naming: api.Naming{Identity: identityOf(p, x.logical())},
		Env:    spec.Env, TimeoutMS: new(seconds * 1000), MaxOutputBytes: maxOutput,
	}
	if req.Argv, req.Stdin, err = script(inDir(spec.Workdir) + spec.Cmd); err != nil {
		return execResult{}, err
	}
	res, err := s.core.Exec(ctx, p.caller(), x.sandbox, req)
	if err != nil {
		return execResult{}, s.whyNot(x, err)
	}
	if res.SandboxLost {
		return execResult{}, s.whyNot(x, api.Errorf(api.CodeSandboxLost, "the session's sandbox ended: %s", res.TerminalReason))
	}
	out := execResult{
		SessionID: x.logical(), BackendName: x.engine, Status: "completed", DurationMS: res.DurationMS,
		Stdout: shown(res.Stdout, res.StdoutInfo), Stderr: withRefusals(shown(res.Stderr, res.StderrInfo), res.Refusals), Adjusted: res.Adjusted,
	}
	if !res.TimedOut {
		out.ExitCode = new(res.ExitStatus())
		return out, nil
	}
	out.Status = "timed_out"
	if out.Stderr == "" {
		out.Stderr = fmt.Sprintf("Command timed out after %d seconds", seconds)
	}
	if bool(s.settings().box.Compat.TimeoutDropsSession) {
		if unlock, err := s.ops.lock(ctx, x.physical); err == nil {
			s.drop(ctx, x)
			unlock()
		}
	}
	return out, nil
}

// maxArgument is the longest argument that Linux starts a program with, in bytes.
const maxArgument = 128<<10 - 1

// fromInput is a script that runs the one on its input, which that one does not see.
const fromInput = `eval "$(cat)" </dev/null`

// script is how a login shell is given a script: as an argument, or on its input where it is
// too long for one. LangBot sends attachments in its scripts.
func script(text string) (argv []string, stdin api.Bytes, err error) {
	if len(text) <= maxArgument {
		return []string{"/bin/sh", "-lc", text}, nil, nil
	}
	if strings.ContainsRune(text, 0) {
		return nil, nil, failed(classValidation, "cmd: it has a NUL character")
	}
	return []string{"/bin/sh", "-lc", fromInput}, api.Bytes(text), nil
}

// exportLimit begins the last line of the error output of LangBot's own scripts, which
// LangBot reads.
const exportLimit = "LANGBOT_OUTBOX_LIMIT:"

// withRefusals ends the error output of an exec with what was not let out meanwhile, on
// one line, so that who reads its end learns why a connection failed.
func withRefusals(stderr string, refused []api.EgressRefusal) string {
	if len(refused) == 0 || strings.HasPrefix(stderr[strings.LastIndexByte(stderr, '\n')+1:], exportLimit) {
		return stderr
	}
	r := refused[len(refused)-1]
	line := "cloche: " + r.Name
	if r.Port != 0 {
		line += ":" + strconv.Itoa(r.Port)
	}
	line += " was not let out: " + r.Reason
	if r.Hint != "" {
		line += "; " + r.Hint
	}
	if n := len(refused) - 1; n > 0 {
		line += fmt.Sprintf(" (and %d more)", n)
	}
	line = strings.Join(strings.Fields(line), " ")
	if stderr == "" {
		return line
	}
	return stderr + "\n" + line
}

// inDir is the line before a command that takes a login shell to a directory, which is
// made where it is missing. It is a line of its own, so that what is wrong with the
// command is wrong with the command alone; and a directory that is there costs no
// process.
func inDir(dir string) string {
	quoted := "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	return "cd -- " + quoted + " 2>/dev/null || { mkdir -p -- " + quoted + " && cd -- " + quoted + "; } || exit\n"
}

// whyNot is an error on a session that may have been taken away meanwhile.
func (s *Server) whyNot(x *session, err error) error {
	s.mu.Lock()
	gone := s.sessions[x.physical] != x
	s.mu.Unlock()
	code := api.CodeOf(err)
	if gone && (code == api.CodeNotFound || code == api.CodeSandboxLost || code == api.CodeState || code == api.CodeUnavailable) {
		return failed(classNotFound, "Box session %s is being deleted", x.logical())
	}
	return err
}

// shown is an output stream as it is answered. The notice is the reference's, byte for byte:
// LangBot recognises an export that was cut by it.
func shown(data []byte, n api.StreamCounts) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(data), "\ufffd"))
	if n.Dropped > 0 {
		text += fmt.Sprintf("\n... [raw output clipped at %d bytes, %d bytes discarded]", maxOutput, n.Dropped)
	}
	return text
}

package client

import (
	"context"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// OneShot configures a one-shot program: its sandbox and how to run it. The zero value uses the
// daemon's defaults.
type OneShot struct {
	api.SandboxSpec
	// Timeout is the time after which the program is killed; 0 is the profile's limit.
	Timeout time.Duration
	// Stdin is the program's complete input.
	Stdin []byte
	// Combined gives the program one pipe for stdout and stderr.
	Combined bool
}

// Exec runs one program in a sandbox and waits for its end. A command that fails has a result; it
// is not an error. If ctx ends first, the program continues, unless req sets CancelWithCaller.
// SignalProcess with KILL ends the program by its ExecID, even if the daemon has not started it
// yet. A request with an ExecID is sent a second time when its connection breaks, and the daemon
// runs it once. A request with CancelWithCaller is not repeated.
func (c *Client) Exec(ctx context.Context, ref string, req api.ExecRequest) (*api.Result, error) {
	p, err := sandboxPath(ref, "/exec")
	if err != nil {
		return nil, err
	}
	if err := checkExec("", req); err != nil {
		return nil, err
	}
	var r api.Result
	key := req.ExecID
	if req.CancelWithCaller {
		key = "" // the program ends with the connection
	}
	if err := c.callKeyed(ctx, key, p, req, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// Shell runs a script with /bin/sh in a sandbox and waits for its end.
func (c *Client) Shell(ctx context.Context, ref, script string) (*api.Result, error) {
	return c.Exec(ctx, ref, api.ExecRequest{Shell: script})
}

// Run creates a sandbox, runs one program in it and removes the sandbox, in one call. The daemon
// removes the sandbox even if this client ends.
func (c *Client) Run(ctx context.Context, req api.RunRequest) (*api.RunResult, error) {
	if err := checkRun(req); err != nil {
		return nil, err
	}
	var r api.RunResult
	if err := c.call(ctx, http.MethodPost, "/run", nil, req, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// RunShell is Run with a script for /bin/sh. A sandbox without a name gets a random one that begins
// with "sh-".
func (c *Client) RunShell(ctx context.Context, script string, o OneShot) (*api.Result, error) {
	return c.oneShot(ctx, "sh-", api.ExecRequest{Shell: script}, o)
}

// RunPython is Run with a program for python3. A sandbox without a name gets a random one that
// begins with "py-".
func (c *Client) RunPython(ctx context.Context, program string, o OneShot) (*api.Result, error) {
	return c.oneShot(ctx, "py-", api.ExecRequest{Python: program}, o)
}

func (c *Client) oneShot(ctx context.Context, prefix string, req api.ExecRequest, o OneShot) (*api.Result, error) {
	if o.Name == "" {
		o.Name = api.NewID(prefix)
	}
	if o.Timeout < 0 {
		return nil, api.Invalid("timeout", "timeout %v is negative", o.Timeout).WithHint("0 is the profile's limit")
	}
	if o.Timeout > 0 {
		// A timeout below a millisecond becomes 1: 0 would mean no timeout.
		ms := max(1, o.Timeout.Milliseconds())
		req.TimeoutMS = &ms
	}
	req.Stdin, req.Combined = o.Stdin, o.Combined
	r, err := c.Run(ctx, api.RunRequest{Spec: o.SandboxSpec, Exec: req})
	if err != nil {
		return nil, err
	}
	return &r.Result, nil
}

// The checks below refuse only what JSON cannot represent: text that is not UTF-8 would arrive
// changed. The daemon checks everything else.

func checkRun(r api.RunRequest) error {
	if err := checkSpec("spec.", r.Spec); err != nil {
		return err
	}
	return checkExec("exec.", r.Exec)
}

func checkExec(at string, r api.ExecRequest) error {
	for i, a := range r.Argv {
		if err := checkText(fmt.Sprintf("%sargv[%d]", at, i), a); err != nil {
			return err
		}
	}
	if err := checkEnv(at+"env", r.Env); err != nil {
		return err
	}
	if err := checkNaming(at, r.Naming); err != nil {
		return err
	}
	return checkTexts(at, "exec_id", r.ExecID, "shell", r.Shell, "python", r.Python, "cwd", r.Cwd, "user", r.User)
}

func checkSpec(at string, s api.SandboxSpec) error {
	if err := checkEnv(at+"env", s.Env); err != nil {
		return err
	}
	if err := checkNaming(at, s.Naming); err != nil {
		return err
	}
	if err := checkEnv(at+"labels", s.Labels); err != nil {
		return err
	}
	for i, f := range s.Files {
		if err := checkText(fmt.Sprintf("%sfiles[%d].path", at, i), f.Path); err != nil {
			return err
		}
	}
	for i, m := range s.Mounts {
		if err := checkTexts(fmt.Sprintf("%smounts[%d].", at, i), "source", m.Source, "target", m.Target); err != nil {
			return err
		}
	}
	if w := s.Workspace; w != nil {
		if err := checkTexts(at+"workspace.", "name", w.Name, "dir", w.Dir, "path", w.Path); err != nil {
			return err
		}
	}
	return checkTexts(at, "name", s.Name, "idempotency_key", s.IdempotencyKey, "image", s.Image, "user", s.User, "cwd", s.Cwd)
}

func checkEnv(field string, env map[string]string) error {
	for k, v := range env {
		if err := checkText(field, k); err != nil {
			return err
		}
		if err := checkText(field+"."+k, v); err != nil {
			return err
		}
	}
	return nil
}

// checkTexts takes pairs of a field's name and its value.
func checkTexts(at string, pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if err := checkText(at+pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func checkText(field, s string) error {
	if utf8.ValidString(s) {
		return nil
	}
	return api.Invalid(field, "%s is not UTF-8 and would arrive changed", field).
		WithHint("put such bytes into a file or into stdin")
}

package policy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of an exec.
const (
	maxArgs = 4096
	// maxArgvBytes is the kernel's limit of 2 MiB for a program's arguments and environment, less
	// space for the pointers to them and for a small environment. With a large environment, the
	// kernel returns the error.
	maxArgvBytes = 2<<20 - 64<<10
	maxStdin     = 16 << 20
	maxTTY       = 4096
)

// Settings are what an exec inherits from its sandbox.
type Settings struct {
	// Ref is the sandbox's name in messages.
	Ref     string
	Tenant  string
	Profile string
	Env     map[string]string
	User    string
	Cwd     string
	Limits  api.Limits
}

// SettingsOf returns the settings of a recorded sandbox.
func SettingsOf(sb api.Sandbox) Settings {
	return Settings{Ref: sb.ID, Tenant: sb.Tenant, Profile: sb.Profile, Env: sb.Env, User: sb.User, Cwd: sb.Cwd, Limits: sb.Limits}
}

// ExecPermit is a granted exec. Only DecideExec returns a valid one. It is immutable and safe for
// concurrent use.
type ExecPermit struct {
	valid    bool
	req      api.ExecRequest
	argv     []string
	env      map[string]string
	cwd      string
	user     string
	timeout  time.Duration
	output   int64
	adjusted []api.Adjustment
}

// Valid reports whether DecideExec returned p.
func (p ExecPermit) Valid() bool { return p.valid }

// Argv returns what to execute. A script is wrapped in its interpreter.
func (p ExecPermit) Argv() []string { return slices.Clone(p.argv) }

// Env returns the sandbox's environment, overridden by the request's.
func (p ExecPermit) Env() map[string]string { return maps.Clone(p.env) }

// Cwd returns the absolute working directory.
func (p ExecPermit) Cwd() string { return p.cwd }

// User returns the request's user, or the sandbox's. Empty is the image's.
func (p ExecPermit) User() string { return p.user }

// Timeout returns how long the program can run; 0 is unlimited.
func (p ExecPermit) Timeout() time.Duration { return p.timeout }

// MaxOutput returns how many bytes of each stream are kept. It is never 0.
func (p ExecPermit) MaxOutput() int64 { return p.output }

// Adjusted returns every value of the request that was changed.
func (p ExecPermit) Adjusted() []api.Adjustment { return slices.Clone(p.adjusted) }

// Request returns the granted request, for fields without a decision: Stdin, Combined, TTY, Rows
// and Cols. Its slices are shared.
func (p ExecPermit) Request() api.ExecRequest { return p.req }

// DecideExec grants one exec in a sandbox with these settings, or returns why not. The error is
// always a *api.Error. If creating is disabled, execs in running sandboxes are still allowed.
func DecideExec(req api.ExecRequest, in Settings, caller Caller, set rules.Rules) (ExecPermit, error) {
	if err := Authorize(caller, VerbExec, in.Ref, in.Tenant, in.Profile); err != nil {
		return ExecPermit{}, err
	}
	p, ok := rules.ResolveProfile(in.Profile, set)
	if !ok {
		return ExecPermit{}, profileGone(in.Profile, set)
	}
	req.Naming = api.Naming{} // already used to select the sandbox, see DecideTarget
	out := ExecPermit{valid: true, req: req, user: in.User, cwd: in.Cwd}
	for _, check := range []func(*ExecPermit, Settings, *rules.Profile) *api.Error{
		execID, execProgram, execPhase, execEnv, execCwd, execUser, execWait, execInput, execTimeout, execOutput, execChars,
	} {
		if err := check(&out, in, &p); err != nil {
			return ExecPermit{}, err
		}
	}
	return out, nil
}

// profileGone is the error for a sandbox whose profile no longer exists.
func profileGone(name string, set rules.Rules) *api.Error {
	e := api.Errorf(api.CodeState, "profile %s, which this sandbox was made with, is no longer in the policy file", rules.Quote(name))
	return e.WithHint("make the sandbox again with one of %s", strings.Join(rules.Profiles(set), ", "))
}

// execID checks the ID, which is unique in the sandbox and also a directory name.
func execID(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if id := x.req.ExecID; id != "" && !api.ValidName(id) {
		return api.Invalid("exec_id", "exec_id %s cannot name a process", rules.Quote(id)).WithHint("%s", rules.NameHint())
	}
	return nil
}

// execWait checks the names. Whether the endpoints exist is checked during the wait.
func execWait(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if n := len(x.req.WaitEndpoints); n > api.MaxEndpoints {
		return rules.TooLarge("wait_endpoints", "wait_endpoints names %d", n).WithHint("at most %d, which is all that a sandbox has", api.MaxEndpoints)
	}
	for i, name := range x.req.WaitEndpoints {
		if !api.ValidEndpointName(name) {
			return api.Invalid(rules.ElementAt("wait_endpoints", i), "%s cannot name an endpoint", rules.Quote(name)).WithHint("name one of the sandbox's endpoints")
		}
	}
	return nil
}

func execProgram(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	var given []string
	field := "argv"
	if x.req.Argv != nil {
		given, x.argv = append(given, "argv"), slices.Clone(x.req.Argv)
	}
	if x.req.Shell != "" {
		field = "shell"
		given, x.argv = append(given, field), []string{"/bin/sh", "-c", x.req.Shell}
	}
	if x.req.Python != "" {
		field = "python"
		given, x.argv = append(given, field), []string{"python3", "-c", x.req.Python}
	}
	switch {
	case len(given) == 0:
		return api.Invalid("argv", "there is nothing to run").WithHint("set exactly one of argv, shell and python")
	case len(given) > 1:
		return api.Invalid(given[0], "%s are set together", strings.Join(given, " and ")).
			WithHint("set exactly one of argv, shell and python")
	case len(x.argv) == 0:
		return api.Invalid("argv", "argv is empty").WithHint(`name a program, such as ["python3", "main.py"]`)
	case x.argv[0] == "":
		return api.Invalid("argv[0]", "argv[0], the program, is empty").WithHint(`name a program, such as ["python3", "main.py"]`)
	case len(x.argv) > maxArgs:
		return rules.TooLarge("argv", "argv has %d elements", len(x.argv)).WithHint("at most %d; pass more as a file", maxArgs)
	}
	total := 0
	for i, a := range x.argv {
		one := field
		if field == "argv" {
			one = rules.ElementAt(field, i)
		}
		if strings.ContainsRune(a, 0) {
			return api.Invalid(one, "%s holds a NUL byte", one).WithHint("no program can receive a NUL in an argument; pass binary data as a file or stdin")
		}
		if len(a) > maxExecString {
			return rules.TooLarge(one, "%s has %d bytes", one, len(a)).
				WithHint("the kernel takes at most %d in one argument; write it to a file and run that", maxExecString)
		}
		total += len(a) + 1
	}
	if total > maxArgvBytes {
		return rules.TooLarge(field, "%s has %d bytes", field, total).WithHint("at most %d in all; pass more as a file", maxArgvBytes)
	}
	return nil
}

// execPhase checks that the phase is one in which jobs run commands.
func execPhase(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if p := x.req.Phase; p != "" && !slices.Contains(api.ExecPhases(), p) {
		return api.Invalid("phase", "phase %s does not run commands", rules.Quote(p)).
			WithHint("one of %s, or leave it out", strings.Join(api.ExecPhases(), ", "))
	}
	return nil
}

func execEnv(x *ExecPermit, in Settings, _ *rules.Profile) *api.Error {
	if err := validEnv("env", x.req.Env); err != nil {
		return err
	}
	x.env = maps.Clone(in.Env)
	if x.env == nil {
		x.env = map[string]string{}
	}
	maps.Copy(x.env, x.req.Env)
	return validEnv("env", x.env)
}

func execCwd(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if x.req.Cwd == "" {
		return nil
	}
	var err *api.Error
	x.cwd, err = rules.CleanAbs("cwd", x.req.Cwd)
	return err
}

func execUser(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if x.req.User == "" {
		return nil
	}
	x.user = x.req.User
	return validUser("user", x.user)
}

func execInput(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if n := len(x.req.Stdin); n > maxStdin {
		return rules.TooLarge("stdin", "stdin has %d bytes", n).
			WithHint("at most %d in one call; stream it, or write it to a file first", maxStdin)
	}
	if x.req.Rows > maxTTY || x.req.Cols > maxTTY {
		return api.Invalid("rows", "a terminal of %d rows and %d columns was asked for", x.req.Rows, x.req.Cols).
			WithHint("at most %d each", maxTTY)
	}
	if x.req.TTY {
		x.req.Combined = true
	}
	return nil
}

// execTimeout uses the sandbox's timeout if the request sets none. A requested 0 is unlimited,
// which exceeds every ceiling.
func execTimeout(x *ExecPermit, in Settings, p *rules.Profile) *api.Error {
	const field = "timeout_ms"
	l := limitOf(rules.FieldTimeout)
	granted := float64(in.Limits.TimeoutMS)
	if x.req.TimeoutMS != nil {
		asked := float64(*x.req.TimeoutMS)
		if err := l.Check(field, asked); err != nil {
			return err
		}
		v, adj, err := l.LockedOrFit(p, field, asked, granted, true)
		if err != nil {
			return err
		}
		if adj != nil {
			x.adjusted = append(x.adjusted, *adj)
		}
		granted = v
	}
	x.timeout = time.Duration(granted) * time.Millisecond
	x.req.TimeoutMS = new(int64(granted))
	return nil
}

func execOutput(x *ExecPermit, in Settings, p *rules.Profile) *api.Error {
	const field = "max_output_bytes"
	l := limitOf(rules.FieldMaxOutput)
	granted := float64(in.Limits.MaxOutputBytes)
	if granted <= 0 {
		granted = api.DefaultMaxOutput
	}
	if x.req.MaxOutputBytes != 0 {
		asked := float64(x.req.MaxOutputBytes)
		if err := l.Check(field, asked); err != nil {
			return err
		}
		v, adj, err := l.LockedOrFit(p, field, asked, granted, false)
		if err != nil {
			return err
		}
		if adj != nil {
			x.adjusted = append(x.adjusted, *adj)
		}
		granted = v
	}
	x.output = int64(granted)
	x.req.MaxOutputBytes = x.output
	return nil
}

// execChars checks the number of output characters, which is not a limit of the sandbox.
func execChars(x *ExecPermit, _ Settings, _ *rules.Profile) *api.Error {
	if n := x.req.MaxOutputChars; n != nil && (*n < 0 || *n > api.MaxOutputChars) {
		return api.Invalid("max_output_chars", "max_output_chars is %d", *n).WithHint("from 0 to %d characters, or leave it out", api.MaxOutputChars)
	}
	return nil
}

// NoOutputChars refuses a limit in characters for output that is not collected.
func NoOutputChars(req api.ExecRequest) error {
	if req.MaxOutputChars == nil {
		return nil
	}
	return api.Invalid("max_output_chars", "max_output_chars is for results, and this output is sent as it is written").
		WithHint("leave it out, or run the program without a stream and to its end")
}

func limitOf(field string) rules.Limit {
	for _, l := range rules.Limits() {
		if l.Field == field {
			return l
		}
	}
	return rules.Limit{}
}

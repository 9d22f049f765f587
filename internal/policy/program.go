package policy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of a program.
const (
	maxProgramCommands = 256
	maxProgramFiles    = 4096
	maxProgramDirs     = 64
	maxProgramHandlers = 64
	maxProgramChannels = 32
	maxProgramOutputs  = 256
	maxProgramBytes    = 16 << 20 // of all outputs together
	maxInspectMS       = 24 * 60 * 60 * 1000
)

// ProgramPlan is a granted program: what each of its phases runs.
type ProgramPlan struct {
	Setup, PostSetup, Run, Score []api.ExecRequest
	// Handlers has the commands of each handler.
	Handlers [][]api.ExecRequest
	Channels []api.ProcessSpec
	// Declared is the sum of all timeouts.
	Declared time.Duration
}

// CheckProgram returns what is wrong with a program in any sandbox.
func CheckProgram(s api.ProgramSpec) error {
	for _, check := range []func(api.ProgramSpec) *api.Error{programSandbox, programPhases, programHandlers, programFiles, programOutputs} {
		if err := check(s); err != nil {
			return err
		}
	}
	return nil
}

func programSandbox(s api.ProgramSpec) *api.Error {
	switch {
	case s.IdempotencyKey != "" && !api.ValidIdempotencyKey(s.IdempotencyKey):
		return api.Invalid("idempotency_key", "idempotency_key %s is not valid", rules.Quote(s.IdempotencyKey)).
			WithHint("1 to %d printable ASCII characters, no space among them", api.MaxIdempotencyKey)
	case s.Name != "" && !api.ValidName(s.Name):
		return api.Invalid("name", "name %s is not valid", rules.Quote(s.Name)).WithHint("%s", rules.NameHint())
	case s.Spec == nil && s.Sandbox == "":
		return api.Invalid("spec", "the program has no sandbox").WithHint("set spec, which may be empty, for one of its own; or sandbox, for one that exists")
	case s.Spec != nil && s.Sandbox != "":
		return api.Invalid("sandbox", "spec and sandbox are set together").WithHint("set exactly one of them")
	case s.Sandbox != "" && (s.Keep || s.InspectFailedMS != 0):
		return api.Invalid("keep", "a sandbox that exists stays as it is").WithHint("leave keep and inspect_failed_ms out")
	case s.InspectFailedMS < 0 || s.InspectFailedMS > maxInspectMS:
		return api.Invalid("inspect_failed_ms", "inspect_failed_ms is %d", s.InspectFailedMS).WithHint("0 to %d", maxInspectMS)
	}
	return checkLabelMap(s.Labels)
}

// checkLabelMap checks labels.
func checkLabelMap(labels map[string]string) *api.Error {
	return checkLabels(&decision{spec: api.SandboxSpec{Labels: labels}})
}

func programPhases(s api.ProgramSpec) *api.Error {
	for _, p := range []struct {
		name  string
		phase *api.ProgramPhase
	}{{api.PhaseSetup, s.Setup}, {api.PhasePostSetup, s.PostSetup}, {api.PhaseRun, &s.Run}, {api.PhaseScore, s.Score}} {
		if p.phase == nil {
			continue
		}
		setup := p.name == api.PhaseSetup
		switch {
		case len(p.phase.Commands) == 0:
			return api.Invalid(p.name+".commands", "%s has no command", p.name).WithHint("name one, or leave the phase out; run must have one")
		case len(p.phase.Commands) > maxProgramCommands:
			return rules.TooLarge(p.name+".commands", "%s has %d commands", p.name, len(p.phase.Commands)).WithHint("at most %d; write a script", maxProgramCommands)
		case !setup && (p.phase.Network != "" || p.phase.Egress != nil):
			return api.Invalid(p.name+".network", "%s has no network of its own", p.name).WithHint("only setup may; what leaves later is in spec")
		case setup && s.Sandbox != "" && (p.phase.Network != "" || p.phase.Egress != nil):
			return api.Invalid(p.name+".network", "the network of a sandbox that exists is everybody's who uses it").
				WithHint("let the program make its sandbox, with spec; or replace what may leave before and after, with PUT /v1/sandboxes/{ref}/egress")
		case p.name != api.PhaseSetup && p.name != api.PhasePostSetup && p.phase.Snapshot != "":
			return api.Invalid(p.name+".snapshot", "no snapshot is made after %s", p.name).WithHint("only setup and post_setup are worth one: nothing of the rollout is there yet")
		case p.phase.Snapshot != "" && !api.ValidName(p.phase.Snapshot):
			return api.Invalid(p.name+".snapshot", "%s cannot name a snapshot", rules.Quote(p.phase.Snapshot)).WithHint("%s", rules.NameHint())
		}
		if err := programTimeout(p.name+".timeout_ms", p.phase.TimeoutMS); err != nil {
			return err
		}
		for i, c := range p.phase.Commands {
			if err := programTimeout(rules.ElementAt(p.name+".commands", i)+".timeout_ms", c.TimeoutMS); err != nil {
				return err
			}
		}
	}
	if s.Score == nil && (s.ScoreFile != "" || s.ScoreAlways) {
		return api.Invalid("score", "nothing scores the program").WithHint("name a command in score, or leave score_file and score_always out")
	}
	return nil
}

func programTimeout(field string, ms int64) *api.Error {
	if ms < 0 || ms > rules.MaxTimeoutMS {
		return api.Invalid(field, "%s is %d", field, ms).WithHint("0 is the default of the phase; at most %d", int64(rules.MaxTimeoutMS))
	}
	return nil
}

func programHandlers(s api.ProgramSpec) *api.Error {
	if len(s.Handlers) > maxProgramHandlers || len(s.Channels) > maxProgramChannels {
		return rules.TooLarge("handlers", "there are %d handlers and %d channels", len(s.Handlers), len(s.Channels)).WithHint("at most %d and %d", maxProgramHandlers, maxProgramChannels)
	}
	seen := map[string]bool{}
	for i, h := range s.Handlers {
		field := rules.ElementAt("handlers", i)
		switch {
		case !api.ValidName(h.Name):
			return api.Invalid(field+".name", "handler name %s is not valid", rules.Quote(h.Name)).WithHint("%s", rules.NameHint())
		case seen[h.Name]:
			return api.Invalid(field+".name", "there are two handlers named %s", h.Name).WithHint("give each a name of its own")
		case len(h.Commands) == 0 && !h.Wait:
			return api.Invalid(field, "handler %s does nothing", h.Name).WithHint("name commands, or set wait")
		case len(h.Commands) > maxProgramCommands:
			return rules.TooLarge(field+".commands", "the handler has %d commands", len(h.Commands)).WithHint("at most %d", maxProgramCommands)
		}
		seen[h.Name] = true
		if err := programTimeout(field+".timeout_ms", h.TimeoutMS); err != nil {
			return err
		}
	}
	return nil
}

func programFiles(s api.ProgramSpec) *api.Error {
	if n := len(s.Files) + len(s.State); n > maxProgramFiles || len(s.Dirs) > maxProgramDirs {
		return rules.TooLarge("files", "there are %d files and %d directories", n, len(s.Dirs)).WithHint("at most %d and %d; put more into one archive", maxProgramFiles, maxProgramDirs)
	}
	for name, list := range map[string][]api.File{"files": s.Files, "state": s.State} {
		for i, f := range list {
			if err := programPath(rules.ElementAt(name, i)+".path", f.Path); err != nil {
				return err
			}
		}
	}
	for i, d := range s.Dirs {
		if err := programPath(rules.ElementAt("dirs", i)+".path", d.Path); err != nil {
			return err
		}
	}
	return nil
}

func programOutputs(s api.ProgramSpec) *api.Error {
	if len(s.Outputs) > maxProgramOutputs {
		return rules.TooLarge("outputs", "%d outputs were asked for", len(s.Outputs)).WithHint("at most %d; pack them into one archive", maxProgramOutputs)
	}
	if s.ScoreFile != "" {
		if err := programPath("score_file", s.ScoreFile); err != nil {
			return err
		}
	}
	var total int64
	for i, o := range s.Outputs {
		field := rules.ElementAt("outputs", i)
		if err := programPath(field+".path", o.Path); err != nil {
			return err
		}
		if o.MaxBytes < 0 || o.MaxBytes > maxProgramBytes {
			return api.Invalid(field+".max_bytes", "max_bytes is %d", o.MaxBytes).WithHint("0 is %d; at most %d", api.DefaultProgramOutput, maxProgramBytes)
		}
		if o.MaxBytes == 0 {
			o.MaxBytes = api.DefaultProgramOutput
		}
		if total += o.MaxBytes; total > maxProgramBytes {
			return rules.TooLarge("outputs", "the outputs may have more than %d bytes together", maxProgramBytes).WithHint("lower their max_bytes, or keep the sandbox and read them from there")
		}
	}
	return nil
}

func programPath(field, p string) *api.Error {
	clean, err := rules.CleanAbs(field, p)
	if err == nil && clean == "/" {
		err = api.Invalid(field, "%s is the root", field).WithHint("name a file or directory below it")
	}
	return err
}

// DecideProgram grants what a program does in a sandbox with these settings, or returns why not. It
// decides every command of every phase before the first one begins. left is the sandbox's remaining
// lifetime; 0 is no limit.
func DecideProgram(s api.ProgramSpec, in Settings, left time.Duration, caller Caller, set rules.Rules) (ProgramPlan, error) {
	d := programDecision{spec: s, in: in, caller: caller, rules: set}
	for _, p := range []struct {
		name  string
		phase *api.ProgramPhase
		out   *[]api.ExecRequest
	}{
		{api.PhaseSetup, s.Setup, &d.plan.Setup}, {api.PhasePostSetup, s.PostSetup, &d.plan.PostSetup},
		{api.PhaseRun, &s.Run, &d.plan.Run}, {api.PhaseScore, s.Score, &d.plan.Score},
	} {
		if p.phase == nil {
			continue
		}
		var err error
		if *p.out, err = d.commands(p.name, p.name, *p.phase); err != nil {
			return ProgramPlan{}, err
		}
	}
	for i, h := range s.Handlers {
		reqs, err := d.commands(rules.ElementAt("handlers", i), api.PhaseHandlers, api.ProgramPhase{Commands: h.Commands, TimeoutMS: h.TimeoutMS})
		if err != nil {
			return ProgramPlan{}, err
		}
		d.plan.Handlers = append(d.plan.Handlers, reqs)
		if h.Wait {
			d.declare(HandlerTimeout(h))
		}
	}
	for i, c := range s.Channels {
		c.Env, c.Phase = d.env(c.Env), api.PhaseChannels
		c.Cwd, c.User = cmp.Or(c.Cwd, s.Cwd), cmp.Or(c.User, s.User)
		if _, err := DecideProcess(c, in, caller, set); err != nil {
			return ProgramPlan{}, fieldBelow(rules.ElementAt("channels", i), err)
		}
		d.plan.Channels = append(d.plan.Channels, c)
	}
	if left > 0 && d.plan.Declared > left {
		return ProgramPlan{}, api.Invalid("spec.limits.lifetime_ms", "the phases may take %s by their timeouts, and the sandbox lives for %s", d.plan.Declared, left.Round(time.Second)).
			WithHint("a lifetime of more than %d ms, or shorter timeouts", d.plan.Declared.Milliseconds())
	}
	return d.plan, nil
}

// HandlerTimeout returns how long a program waits for a handler.
func HandlerTimeout(h api.ProgramHandler) time.Duration {
	if h.TimeoutMS == 0 {
		return api.DefaultHandlerTimeoutMS * time.Millisecond
	}
	return time.Duration(h.TimeoutMS) * time.Millisecond
}

type programDecision struct {
	spec   api.ProgramSpec
	in     Settings
	caller Caller
	rules  rules.Rules
	plan   ProgramPlan
}

func (d *programDecision) declare(t time.Duration) { d.plan.Declared += t }

// env returns the program's environment, overridden by another one.
func (d *programDecision) env(over map[string]string) map[string]string {
	if len(d.spec.Env) == 0 {
		return maps.Clone(over)
	}
	out := maps.Clone(d.spec.Env)
	maps.Copy(out, over)
	return out
}

// commands returns the execs of a phase.
func (d *programDecision) commands(field, phase string, p api.ProgramPhase) ([]api.ExecRequest, error) {
	var out []api.ExecRequest
	for i, c := range p.Commands {
		req := api.ExecRequest{
			Argv: slices.Clone(c.Argv), Shell: c.Shell, Python: c.Python, Stdin: c.Stdin, Env: d.env(p.Env), Cwd: d.spec.Cwd, User: d.spec.User,
			Phase: phase, MaxOutputBytes: p.MaxOutputBytes,
		}
		if req.MaxOutputBytes == 0 {
			req.MaxOutputBytes = api.DefaultProgramOutput
		}
		timeout, asked := c.TimeoutMS, true
		switch {
		case timeout > 0:
		case p.TimeoutMS > 0:
			timeout = p.TimeoutMS
		case phase == api.PhaseRun:
			timeout, asked = 0, false
		default:
			timeout, asked = api.DefaultSetupTimeoutMS, false
		}
		req.TimeoutMS = &timeout
		permit, err := DecideExec(req, d.in, d.caller, d.rules)
		if err != nil && !asked {
			// A timeout that was not requested is the sandbox's.
			req.TimeoutMS = nil
			permit, err = DecideExec(req, d.in, d.caller, d.rules)
		}
		if err != nil {
			return nil, fieldBelow(rules.ElementAt(field+".commands", i), err)
		}
		d.declare(permit.Timeout())
		out = append(out, req)
	}
	return out, nil
}

// fieldBelow prefixes the field of an error with another field.
func fieldBelow(field string, err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	c := *e
	if c.Field != "" {
		c.Field = field + "." + c.Field
	} else {
		c.Field = field
	}
	return &c
}

// NoProgram is the error for a program that does not exist, or not for the caller.
func NoProgram(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "there is no program %s", rules.Quote(id)).WithHint("`cloche program ls` lists the ones that exist")
}

// SeesProgram reports whether the caller can see a program, by its tenant and profile.
func SeesProgram(caller Caller, p api.Program) bool {
	return SeesSandbox(caller, p.Tenant, p.Profile)
}

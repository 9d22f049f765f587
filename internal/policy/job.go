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

// Limits of a job.
const (
	maxJobCommands = 256
	maxJobFiles    = 4096
	maxJobDirs     = 64
	maxJobHandlers = 64
	maxJobChannels = 32
	maxJobOutputs  = 256
	maxJobBytes    = 16 << 20 // of all outputs together
	maxInspectMS   = 24 * 60 * 60 * 1000
)

// JobPlan is a granted job: what each of its phases runs.
type JobPlan struct {
	Setup, PostSetup, Run, Score []api.ExecRequest
	// Handlers has the commands of each handler.
	Handlers [][]api.ExecRequest
	Channels []api.ProcessSpec
	// Declared is the sum of all timeouts.
	Declared time.Duration
}

// CheckJob returns what is wrong with a job in any sandbox.
func CheckJob(s api.JobSpec) error {
	for _, check := range []func(api.JobSpec) *api.Error{jobSandbox, jobPhases, jobHandlers, jobFiles, jobOutputs} {
		if err := check(s); err != nil {
			return err
		}
	}
	return nil
}

func jobSandbox(s api.JobSpec) *api.Error {
	switch {
	case s.IdempotencyKey != "" && !api.ValidIdempotencyKey(s.IdempotencyKey):
		return api.Invalid("idempotency_key", "idempotency_key %s is not valid", rules.Quote(s.IdempotencyKey)).
			WithHint("1 to %d printable ASCII characters, no space among them", api.MaxIdempotencyKey)
	case s.Name != "" && !api.ValidName(s.Name):
		return api.Invalid("name", "name %s is not valid", rules.Quote(s.Name)).WithHint("%s", rules.NameHint())
	case s.Spec == nil && s.Sandbox == "":
		return api.Invalid("spec", "the job has no sandbox").WithHint("set spec, which may be empty, for one of its own; or sandbox, for one that exists")
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

func jobPhases(s api.JobSpec) *api.Error {
	for _, p := range []struct {
		name  string
		phase *api.JobPhase
	}{{api.PhaseSetup, s.Setup}, {api.PhasePostSetup, s.PostSetup}, {api.PhaseRun, &s.Run}, {api.PhaseScore, s.Score}} {
		if p.phase == nil {
			continue
		}
		setup := p.name == api.PhaseSetup
		switch {
		case len(p.phase.Commands) == 0:
			return api.Invalid(p.name+".commands", "%s has no command", p.name).WithHint("name one, or leave the phase out; run must have one")
		case len(p.phase.Commands) > maxJobCommands:
			return rules.TooLarge(p.name+".commands", "%s has %d commands", p.name, len(p.phase.Commands)).WithHint("at most %d; write a script", maxJobCommands)
		case !setup && (p.phase.Network != "" || p.phase.Egress != nil):
			return api.Invalid(p.name+".network", "%s has no network of its own", p.name).WithHint("only setup may; what leaves later is in spec")
		case setup && s.Sandbox != "" && (p.phase.Network != "" || p.phase.Egress != nil):
			return api.Invalid(p.name+".network", "the network of a sandbox that exists is everybody's who uses it").
				WithHint("let the job make its sandbox, with spec; or replace what may leave before and after, with PUT /v1/sandboxes/{ref}/egress")
		case p.name != api.PhaseSetup && p.name != api.PhasePostSetup && p.phase.Snapshot != "":
			return api.Invalid(p.name+".snapshot", "no snapshot is made after %s", p.name).WithHint("only setup and post_setup are worth one: nothing of the rollout is there yet")
		case p.phase.Snapshot != "" && !api.ValidName(p.phase.Snapshot):
			return api.Invalid(p.name+".snapshot", "%s cannot name a snapshot", rules.Quote(p.phase.Snapshot)).WithHint("%s", rules.NameHint())
		}
		if err := jobTimeout(p.name+".timeout_ms", p.phase.TimeoutMS); err != nil {
			return err
		}
		for i, c := range p.phase.Commands {
			if err := jobTimeout(rules.ElementAt(p.name+".commands", i)+".timeout_ms", c.TimeoutMS); err != nil {
				return err
			}
		}
	}
	if s.Score == nil && (s.ScoreFile != "" || s.ScoreAlways) {
		return api.Invalid("score", "nothing scores the job").WithHint("name a command in score, or leave score_file and score_always out")
	}
	return nil
}

func jobTimeout(field string, ms int64) *api.Error {
	if ms < 0 || ms > rules.MaxTimeoutMS {
		return api.Invalid(field, "%s is %d", field, ms).WithHint("0 is the default of the phase; at most %d", int64(rules.MaxTimeoutMS))
	}
	return nil
}

func jobHandlers(s api.JobSpec) *api.Error {
	if len(s.Handlers) > maxJobHandlers || len(s.Channels) > maxJobChannels {
		return rules.TooLarge("handlers", "there are %d handlers and %d channels", len(s.Handlers), len(s.Channels)).WithHint("at most %d and %d", maxJobHandlers, maxJobChannels)
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
		case len(h.Commands) > maxJobCommands:
			return rules.TooLarge(field+".commands", "the handler has %d commands", len(h.Commands)).WithHint("at most %d", maxJobCommands)
		}
		seen[h.Name] = true
		if err := jobTimeout(field+".timeout_ms", h.TimeoutMS); err != nil {
			return err
		}
	}
	return nil
}

func jobFiles(s api.JobSpec) *api.Error {
	if n := len(s.Files) + len(s.State); n > maxJobFiles || len(s.Dirs) > maxJobDirs {
		return rules.TooLarge("files", "there are %d files and %d directories", n, len(s.Dirs)).WithHint("at most %d and %d; put more into one archive", maxJobFiles, maxJobDirs)
	}
	for name, list := range map[string][]api.File{"files": s.Files, "state": s.State} {
		for i, f := range list {
			if err := jobPath(rules.ElementAt(name, i)+".path", f.Path); err != nil {
				return err
			}
		}
	}
	for i, d := range s.Dirs {
		if err := jobPath(rules.ElementAt("dirs", i)+".path", d.Path); err != nil {
			return err
		}
	}
	return nil
}

func jobOutputs(s api.JobSpec) *api.Error {
	if len(s.Outputs) > maxJobOutputs {
		return rules.TooLarge("outputs", "%d outputs were asked for", len(s.Outputs)).WithHint("at most %d; pack them into one archive", maxJobOutputs)
	}
	if s.ScoreFile != "" {
		if err := jobPath("score_file", s.ScoreFile); err != nil {
			return err
		}
	}
	var total int64
	for i, o := range s.Outputs {
		field := rules.ElementAt("outputs", i)
		if err := jobPath(field+".path", o.Path); err != nil {
			return err
		}
		if o.MaxBytes < 0 || o.MaxBytes > maxJobBytes {
			return api.Invalid(field+".max_bytes", "max_bytes is %d", o.MaxBytes).WithHint("0 is %d; at most %d", api.DefaultJobOutput, maxJobBytes)
		}
		if o.MaxBytes == 0 {
			o.MaxBytes = api.DefaultJobOutput
		}
		if total += o.MaxBytes; total > maxJobBytes {
			return rules.TooLarge("outputs", "the outputs may have more than %d bytes together", maxJobBytes).WithHint("lower their max_bytes, or keep the sandbox and read them from there")
		}
	}
	return nil
}

func jobPath(field, p string) *api.Error {
	clean, err := rules.CleanAbs(field, p)
	if err == nil && clean == "/" {
		err = api.Invalid(field, "%s is the root", field).WithHint("name a file or directory below it")
	}
	return err
}

// DecideJob grants what a job does in a sandbox with these settings, or returns why not. It
// decides every command of every phase before the first one begins. left is the sandbox's remaining
// lifetime; 0 is no limit.
func DecideJob(s api.JobSpec, in Settings, left time.Duration, caller Caller, set rules.Rules) (JobPlan, error) {
	d := jobDecision{spec: s, in: in, caller: caller, rules: set}
	for _, p := range []struct {
		name  string
		phase *api.JobPhase
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
			return JobPlan{}, err
		}
	}
	for i, h := range s.Handlers {
		reqs, err := d.commands(rules.ElementAt("handlers", i), api.PhaseHandlers, api.JobPhase{Commands: h.Commands, TimeoutMS: h.TimeoutMS})
		if err != nil {
			return JobPlan{}, err
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
			return JobPlan{}, fieldBelow(rules.ElementAt("channels", i), err)
		}
		d.plan.Channels = append(d.plan.Channels, c)
	}
	if left > 0 && d.plan.Declared > left {
		return JobPlan{}, api.Invalid("spec.limits.lifetime_ms", "the phases may take %s by their timeouts, and the sandbox lives for %s", d.plan.Declared, left.Round(time.Second)).
			WithHint("a lifetime of more than %d ms, or shorter timeouts", d.plan.Declared.Milliseconds())
	}
	return d.plan, nil
}

// HandlerTimeout returns how long a job waits for a handler.
func HandlerTimeout(h api.JobHandler) time.Duration {
	if h.TimeoutMS == 0 {
		return api.DefaultHandlerTimeoutMS * time.Millisecond
	}
	return time.Duration(h.TimeoutMS) * time.Millisecond
}

type jobDecision struct {
	spec   api.JobSpec
	in     Settings
	caller Caller
	rules  rules.Rules
	plan   JobPlan
}

func (d *jobDecision) declare(t time.Duration) { d.plan.Declared += t }

// env returns the job's environment, overridden by another one.
func (d *jobDecision) env(over map[string]string) map[string]string {
	if len(d.spec.Env) == 0 {
		return maps.Clone(over)
	}
	out := maps.Clone(d.spec.Env)
	maps.Copy(out, over)
	return out
}

// commands returns the execs of a phase.
func (d *jobDecision) commands(field, phase string, p api.JobPhase) ([]api.ExecRequest, error) {
	var out []api.ExecRequest
	for i, c := range p.Commands {
		req := api.ExecRequest{
			Argv: slices.Clone(c.Argv), Shell: c.Shell, Python: c.Python, Stdin: c.Stdin, Env: d.env(p.Env), Cwd: d.spec.Cwd, User: d.spec.User,
			Phase: phase, MaxOutputBytes: p.MaxOutputBytes,
		}
		if req.MaxOutputBytes == 0 {
			req.MaxOutputBytes = api.DefaultJobOutput
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

// NoJob is the error for a job that does not exist, or not for the caller.
func NoJob(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "there is no job %s", rules.Quote(id)).WithHint("`cloche job ls` lists the ones that exist")
}

// SeesJob reports whether the caller can see a job, by its tenant and profile.
func SeesJob(caller Caller, p api.Job) bool {
	return SeesSandbox(caller, p.Tenant, p.Profile)
}

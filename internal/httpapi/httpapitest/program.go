package httpapitest

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// aProgram is the only one that there is: everybody's, and it has succeeded.
const aProgram = "pg-1"

func program(spec *api.ProgramSpec) api.Program {
	at, code := time.Unix(1, 0).UTC(), 0
	res := api.Result{ExitCode: &code, Stdout: api.Bytes("\xff"), Stderr: api.Bytes{}}
	return api.Program{
		ID: aProgram, Tenant: "local", Profile: api.DefaultProfile, State: api.ProgramSucceeded, Phase: api.PhaseScore, Spec: spec, Made: true,
		Phases: []api.ProgramPhaseRecord{
			{Phase: api.PhaseNetwork, State: "succeeded", StartedAt: at, Egress: &api.EgressRules{Network: "none", Generation: 1, Applied: 1}},
			{Phase: api.PhaseRun, State: "succeeded", StartedAt: at, Commands: []api.ProgramCommandRecord{{Command: "true", StartedAt: at, Result: &res}}},
		},
		ReadyAt: &at, CreatedAt: at, EndedAt: &at, Failure: &api.ProgramFailure{Kind: api.FailureExit, Phase: api.PhaseRun, Class: api.ClassUser, Message: "no"},
		Score:   &api.ProgramScore{ExitCode: &code, Output: api.Bytes("1"), File: &api.ProgramOutput{Path: "/x", Content: api.Bytes{}}},
		Outputs: []api.ProgramOutput{{Path: "/a", Content: api.Bytes("\xfe"), Size: 1, Error: api.Errorf(api.CodeNotFound, "no")}},
		Cleanup: api.Errorf(api.CodeInternal, "stuck"),
	}
}

// StartProgram takes any program whose run has a command.
func (c *Core) StartProgram(_ context.Context, _ core.Caller, spec api.ProgramSpec) (api.Program, error) {
	if len(spec.Run.Commands) == 0 {
		return api.Program{}, api.Invalid("run.commands", "run has no command").WithHint("name one")
	}
	return program(&spec), nil
}

// FollowProgram has two steps.
func (c *Core) FollowProgram(ctx context.Context, caller core.Caller, id string, fn func(api.ProgramStep) error) (api.Program, error) {
	p, err := c.Program(ctx, caller, id)
	if err != nil {
		return p, err
	}
	n := 0
	for i, step := range []api.ProgramStep{{Phase: api.PhaseRun, State: "running", Sandbox: "sb-1"}, {Phase: api.PhaseRun, State: "running", Command: &n, Text: "true"}} {
		step.Seq, step.Time = int64(i+1), time.Unix(1, 0).UTC()
		if err := fn(step); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Program finds the one that there is.
func (c *Core) Program(_ context.Context, _ core.Caller, id string) (api.Program, error) {
	if id != aProgram {
		return api.Program{}, api.Errorf(api.CodeNotFound, "there is no program %q", id).WithHint("there is " + aProgram)
	}
	return program(&api.ProgramSpec{Spec: &api.SandboxSpec{}, Run: api.ProgramPhase{Commands: []api.ProgramCommand{{Shell: "true"}}}}), nil
}

// Programs lists it.
func (c *Core) Programs(context.Context, core.Caller, int) (api.ProgramList, error) {
	return api.ProgramList{Programs: []api.Program{program(nil)}}, nil
}

// CancelProgram changes nothing.
func (c *Core) CancelProgram(ctx context.Context, caller core.Caller, id string) (api.Program, error) {
	return c.Program(ctx, caller, id)
}

// ContinueProgram knows the handler "own".
func (c *Core) ContinueProgram(ctx context.Context, caller core.Caller, id string, answer api.ProgramContinue) (api.Program, error) {
	if answer.Handler != "own" {
		return api.Program{}, api.Errorf(api.CodeState, "program %s does not wait for that handler", id).WithHint("it waits for own")
	}
	return c.Program(ctx, caller, id)
}

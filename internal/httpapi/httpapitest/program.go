package httpapitest

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// aProgram is the only one that there is: everybody's, and it has succeeded.
const aProgram = "pg-1"

func program(spec *cloche.ProgramSpec) cloche.Program {
	at, code := time.Unix(1, 0).UTC(), 0
	res := cloche.Result{ExitCode: &code, Stdout: cloche.Bytes("\xff"), Stderr: cloche.Bytes{}}
	return cloche.Program{
		ID: aProgram, Tenant: "local", Profile: cloche.DefaultProfile, State: cloche.ProgramSucceeded, Phase: cloche.PhaseScore, Spec: spec, Made: true,
		Phases: []cloche.ProgramPhaseRecord{
			{Phase: cloche.PhaseNetwork, State: "succeeded", StartedAt: at, Egress: &cloche.EgressRules{Network: "none", Generation: 1, Applied: 1}},
			{Phase: cloche.PhaseRun, State: "succeeded", StartedAt: at, Commands: []cloche.ProgramCommandRecord{{Command: "true", StartedAt: at, Result: &res}}},
		},
		ReadyAt: &at, CreatedAt: at, EndedAt: &at, Failure: &cloche.ProgramFailure{Kind: cloche.FailureExit, Phase: cloche.PhaseRun, Class: cloche.ClassUser, Message: "no"},
		Score:   &cloche.ProgramScore{ExitCode: &code, Output: cloche.Bytes("1"), File: &cloche.ProgramOutput{Path: "/x", Content: cloche.Bytes{}}},
		Outputs: []cloche.ProgramOutput{{Path: "/a", Content: cloche.Bytes("\xfe"), Size: 1, Error: cloche.Errorf(cloche.CodeNotFound, "no")}},
		Cleanup: cloche.Errorf(cloche.CodeInternal, "stuck"),
	}
}

// StartProgram takes any program whose run has a command.
func (c *Core) StartProgram(_ context.Context, _ core.Caller, spec cloche.ProgramSpec) (cloche.Program, error) {
	if len(spec.Run.Commands) == 0 {
		return cloche.Program{}, cloche.Invalid("run.commands", "run has no command").WithHint("name one")
	}
	return program(&spec), nil
}

// FollowProgram has two steps.
func (c *Core) FollowProgram(ctx context.Context, caller core.Caller, id string, fn func(cloche.ProgramStep) error) (cloche.Program, error) {
	p, err := c.Program(ctx, caller, id)
	if err != nil {
		return p, err
	}
	n := 0
	for i, step := range []cloche.ProgramStep{{Phase: cloche.PhaseRun, State: "running", Sandbox: "sb-1"}, {Phase: cloche.PhaseRun, State: "running", Command: &n, Text: "true"}} {
		step.Seq, step.Time = int64(i+1), time.Unix(1, 0).UTC()
		if err := fn(step); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Program finds the one that there is.
func (c *Core) Program(_ context.Context, _ core.Caller, id string) (cloche.Program, error) {
	if id != aProgram {
		return cloche.Program{}, cloche.Errorf(cloche.CodeNotFound, "there is no program %q", id).WithHint("there is " + aProgram)
	}
	return program(&cloche.ProgramSpec{Spec: &cloche.SandboxSpec{}, Run: cloche.ProgramPhase{Commands: []cloche.ProgramCommand{{Shell: "true"}}}}), nil
}

// Programs lists it.
func (c *Core) Programs(context.Context, core.Caller, int) (cloche.ProgramList, error) {
	return cloche.ProgramList{Programs: []cloche.Program{program(nil)}}, nil
}

// CancelProgram changes nothing.
func (c *Core) CancelProgram(ctx context.Context, caller core.Caller, id string) (cloche.Program, error) {
	return c.Program(ctx, caller, id)
}

// ContinueProgram knows the handler "own".
func (c *Core) ContinueProgram(ctx context.Context, caller core.Caller, id string, answer cloche.ProgramContinue) (cloche.Program, error) {
	if answer.Handler != "own" {
		return cloche.Program{}, cloche.Errorf(cloche.CodeState, "program %s does not wait for that handler", id).WithHint("it waits for own")
	}
	return c.Program(ctx, caller, id)
}

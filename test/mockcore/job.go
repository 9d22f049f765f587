package mockcore

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// aJob is the only one that there is: everybody's, and it has succeeded.
const aJob = "pg-1"

func job(spec *api.JobSpec) api.Job {
	at, code := time.Unix(1, 0).UTC(), 0
	res := api.Result{ExitCode: &code, Stdout: api.Bytes("\xff"), Stderr: api.Bytes{}}
	return api.Job{
		ID: aJob, Tenant: "local", Profile: api.DefaultProfile, State: api.JobSucceeded, Phase: api.PhaseScore, Spec: spec, Made: true,
		Phases: []api.JobPhaseRecord{
			{Phase: api.PhaseNetwork, State: "succeeded", StartedAt: at, Egress: &api.EgressRules{Network: "none", Generation: 1, Applied: 1}},
			{Phase: api.PhaseRun, State: "succeeded", StartedAt: at, Commands: []api.JobCommandRecord{{Command: "true", StartedAt: at, Result: &res}}},
		},
		ReadyAt: &at, CreatedAt: at, EndedAt: &at, Failure: &api.JobFailure{Kind: api.FailureExit, Phase: api.PhaseRun, Class: api.ClassUser, Message: "no"},
		Score:   &api.JobScore{ExitCode: &code, Output: api.Bytes("1"), File: &api.JobOutput{Path: "/x", Content: api.Bytes{}}},
		Outputs: []api.JobOutput{{Path: "/a", Content: api.Bytes("\xfe"), Size: 1, Error: api.Errorf(api.CodeNotFound, "no")}},
		Cleanup: api.Errorf(api.CodeInternal, "stuck"),
	}
}

// StartJob takes any job whose run has a command.
func (c *Core) StartJob(_ context.Context, _ core.Caller, spec api.JobSpec) (api.Job, error) {
	if len(spec.Run.Commands) == 0 {
		return api.Job{}, api.Invalid("run.commands", "run has no command").WithHint("name one")
	}
	return job(&spec), nil
}

// FollowJob has two steps.
func (c *Core) FollowJob(ctx context.Context, caller core.Caller, id string, fn func(api.JobStep) error) (api.Job, error) {
	p, err := c.Job(ctx, caller, id)
	if err != nil {
		return p, err
	}
	n := 0
	for i, step := range []api.JobStep{{Phase: api.PhaseRun, State: "running", Sandbox: "sb-1"}, {Phase: api.PhaseRun, State: "running", Command: &n, Text: "true"}} {
		step.Seq, step.Time = int64(i+1), time.Unix(1, 0).UTC()
		if err := fn(step); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Job finds the one that there is.
func (c *Core) Job(_ context.Context, _ core.Caller, id string) (api.Job, error) {
	if id != aJob {
		return api.Job{}, api.Errorf(api.CodeNotFound, "there is no job %q", id).WithHint("there is " + aJob)
	}
	return job(&api.JobSpec{Spec: &api.SandboxSpec{}, Run: api.JobPhase{Commands: []api.JobCommand{{Shell: "true"}}}}), nil
}

// Jobs lists it.
func (c *Core) Jobs(context.Context, core.Caller, int) (api.JobList, error) {
	return api.JobList{Jobs: []api.Job{job(nil)}}, nil
}

// CancelJob changes nothing.
func (c *Core) CancelJob(ctx context.Context, caller core.Caller, id string) (api.Job, error) {
	return c.Job(ctx, caller, id)
}

// ContinueJob knows the handler "own".
func (c *Core) ContinueJob(ctx context.Context, caller core.Caller, id string, answer api.JobContinue) (api.Job, error) {
	if answer.Handler != "own" {
		return api.Job{}, api.Errorf(api.CodeState, "job %s does not wait for that handler", id).WithHint("it waits for own")
	}
	return c.Job(ctx, caller, id)
}

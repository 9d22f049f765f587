package core

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func itoa(n int) string { return strconv.Itoa(n) }

// interrupted returns the failure of a job whose daemon ended.
func interrupted(phase string) *api.JobFailure {
	return &api.JobFailure{
		Kind: api.FailureInterrupted, Phase: phase, Class: api.ClassInfra, Retryable: true,
		Message: "the daemon ended while the job was in phase " + phase, Hint: "run it again: nothing of it goes on", Code: api.CodeUnavailable,
	}
}

// failure converts an error of a phase to a failure of the job.
func (r *jobRun) failure(ctx context.Context, phase string, err error) *api.JobFailure {
	if errors.Is(context.Cause(ctx), errJobsClosed) {
		return interrupted(phase)
	}
	if ctx.Err() != nil {
		f := &api.JobFailure{Kind: api.FailureCanceled, Phase: phase, Class: api.ClassUser, Message: "the job was cancelled", Code: api.CodeCanceled}
		if e, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok {
			f.Message, f.Hint, f.Code = e.Message, e.Hint, e.Code
		}
		return f
	}
	f := &api.JobFailure{Phase: phase}
	argv, isCommand := errors.AsType[*commandError](err)
	if isCommand {
		f.Command = &argv.n
	}
	handler, isHandler := errors.AsType[*errHandler](err)
	switch {
	case isHandler:
		f.Kind, f.Class, f.Message = api.FailureHandler, api.ClassUser, handler.text
	case errors.Is(err, errHandlerTime):
		f.Kind, f.Class, f.Message = api.FailureTimeout, api.ClassLimit, err.Error()
	case isCommand && argv.err == nil:
		r.ofResult(f, argv.res)
	default:
		r.ofError(f, toError(err))
	}
	return f
}

// commandsIn returns the number of commands of a phase.
func (r *jobRun) commandsIn(phase string) int {
	plan := &r.prep.plan
	switch phase {
	case api.PhaseSetup:
		return len(plan.Setup)
	case api.PhasePostSetup:
		return len(plan.PostSetup)
	case api.PhaseHandlers:
		n := 0
		for _, h := range plan.Handlers {
			n += len(h)
		}
		return n
	case api.PhaseChannels:
		return len(plan.Channels)
	case api.PhaseScore:
		return len(plan.Score)
	}
	return len(plan.Run)
}

// ofResult sets how a command ended.
func (r *jobRun) ofResult(f *api.JobFailure, res api.Result) {
	what := fmt.Sprintf("command %d of %d in %s", *f.Command+1, r.commandsIn(f.Phase), f.Phase)
	switch {
	case res.OOM:
		f.Kind, f.Class, f.Message = api.FailureOOM, api.ClassLimit, what+" was killed by the sandbox's memory limit"
		f.Hint = "give the sandbox more memory: spec.limits.memory_bytes"
	case res.SandboxLost:
		r.ofEnd(f, res.Reason)
	case res.TimedOut:
		f.Kind, f.Class, f.Message = api.FailureTimeout, api.ClassLimit, what+" ran into its timeout"
		if res.Reason != "" {
			f.Message = what + ": " + res.Reason
		}
	case res.ExitCode != nil:
		f.Kind, f.Class, f.Message = api.FailureExit, api.ClassUser, fmt.Sprintf("%s ended with status %d", what, *res.ExitCode)
	case res.Signal != "":
		f.Kind, f.Class, f.Message = api.FailureExit, api.ClassUser, what+" was ended by signal "+res.Signal
	default:
		f.Kind, f.Class, f.Retryable, f.Message = api.FailureInternal, api.ClassInfra, true, what+": "+res.Reason
	}
}

// ofEnd sets how a sandbox ended that no longer exists.
func (r *jobRun) ofEnd(f *api.JobFailure, reason string) {
	sb, err := r.s.opts.Sandboxes.Get(r.caller, r.sandbox())
	p := r.look()
	life := int64(0)
	if p.Sandbox != nil {
		life = p.Sandbox.Limits.LifetimeMS
	}
	why := sb.TerminalReason
	if e, ok := errors.AsType[*api.Error](err); ok {
		why = e.TerminalReason
	}
	switch {
	case why == api.EndedOOM:
		f.Kind, f.Class, f.Message = api.FailureOOM, api.ClassLimit, "the sandbox's memory limit ended it"
	case why == api.EndedQuota:
		f.Kind, f.Class, f.Message = api.FailurePolicy, api.ClassLimit, "the sandbox's workspace held more than it may"
	case why == api.EndedIdle || why == api.EndedLease:
		f.Kind, f.Class, f.Message = api.FailureExpired, api.ClassLimit, "the lease of the sandbox was over"
	case why == api.EndedTTL || life > 0 && !time.Now().Before(p.Sandbox.CreatedAt.Add(time.Duration(life)*time.Millisecond)):
		f.Kind, f.Class, f.Message = api.FailureExpired, api.ClassLimit, "the lifetime of the sandbox was over"
		f.Hint = "give it a longer one: spec.limits.lifetime_ms"
	case why == api.EndedLost || why == api.EndedShutdown || err == nil && sb.State == api.StateLost || err == nil && sb.State == api.StateRunning:
		f.Kind, f.Class, f.Retryable, f.Message = api.FailureLost, api.ClassInfra, true, "the sandbox died"
		if reason != "" {
			f.Message = reason
		}
	default:
		f.Kind, f.Class, f.Message = api.FailureEnded, api.ClassUser, "the sandbox was ended by a caller"
	}
}

// ofError sets what an error of Cloche means for the job.
func (r *jobRun) ofError(f *api.JobFailure, e *api.Error) {
	f.Message, f.Hint, f.Code, f.Rule, f.Retryable = e.Message, e.Hint, e.Code, e.Rule, e.Retryable
	if id := r.sandbox(); id != "" {
		sb, err := r.s.opts.Sandboxes.Get(r.caller, id)
		if err != nil || sb.State != api.StateRunning && !sb.State.Held() {
			r.ofEnd(f, e.Message)
			return
		}
	}
	switch e.Code {
	case api.CodeDenied, api.CodeDisabled, api.CodeUnauthenticated:
		f.Kind, f.Class = api.FailurePolicy, api.ClassUser
	case api.CodeQuota:
		f.Kind, f.Class = api.FailurePolicy, api.ClassLimit
	case api.CodeTooMany, api.CodeNoCapacity:
		f.Kind, f.Class, f.Retryable = api.FailureCapacity, api.ClassInfra, true
	case api.CodeInvalid, api.CodeNotFound, api.CodeExists, api.CodeConflict, api.CodeTooLarge, api.CodeUnsupported,
		api.CodeCommandNotFound, api.CodeNotExecutable, api.CodeState:
		f.Kind, f.Class = api.FailureRequest, api.ClassUser
	case api.CodeSandboxLost:
		r.ofEnd(f, e.Message)
	case api.CodeTimeout:
		f.Kind, f.Class, f.Retryable = api.FailureTimeout, api.ClassInfra, true
	case api.CodeCanceled, api.CodeUnavailable, api.CodeInternal:
		f.Kind, f.Class, f.Retryable = api.FailureInternal, api.ClassInfra, true
	}
}

// scorable reports whether score can run after a failure of run: the sandbox still exists, and the
// job itself ended.
func scorable(f *api.JobFailure) bool {
	switch f.Kind {
	case api.FailureExit, api.FailureTimeout, api.FailureOOM:
		return f.Phase == api.PhaseRun
	}
	return false
}

package core

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche"
)

func itoa(n int) string { return strconv.Itoa(n) }

// interrupted is the failure of a program whose daemon ended.
func interrupted(phase string) *cloche.ProgramFailure {
	return &cloche.ProgramFailure{
		Kind: cloche.FailureInterrupted, Phase: phase, Class: cloche.ClassInfra, Retryable: true,
		Message: "the daemon ended while the program was in phase " + phase, Hint: "run it again: nothing of it goes on", Code: cloche.CodeUnavailable,
	}
}

// failure says what an error of a phase means.
func (r *programRun) failure(ctx context.Context, phase string, err error) *cloche.ProgramFailure {
	if errors.Is(context.Cause(ctx), errProgramsClosed) {
		return interrupted(phase)
	}
	if ctx.Err() != nil {
		f := &cloche.ProgramFailure{Kind: cloche.FailureCanceled, Phase: phase, Class: cloche.ClassUser, Message: "the program was cancelled", Code: cloche.CodeCanceled}
		if e, ok := errors.AsType[*cloche.Error](context.Cause(ctx)); ok {
			f.Message, f.Hint, f.Code = e.Message, e.Hint, e.Code
		}
		return f
	}
	f := &cloche.ProgramFailure{Phase: phase}
	command, isCommand := errors.AsType[*commandError](err)
	if isCommand {
		f.Command = &command.n
	}
	handler, isHandler := errors.AsType[*errHandler](err)
	switch {
	case isHandler:
		f.Kind, f.Class, f.Message = cloche.FailureHandler, cloche.ClassUser, handler.text
	case errors.Is(err, errHandlerTime):
		f.Kind, f.Class, f.Message = cloche.FailureTimeout, cloche.ClassLimit, err.Error()
	case isCommand && command.err == nil:
		r.ofResult(f, command.res)
	default:
		r.ofError(f, toError(err))
	}
	return f
}

// commandsIn is how many commands a phase has.
func (r *programRun) commandsIn(phase string) int {
	plan := &r.prep.plan
	switch phase {
	case cloche.PhaseSetup:
		return len(plan.Setup)
	case cloche.PhasePostSetup:
		return len(plan.PostSetup)
	case cloche.PhaseHandlers:
		n := 0
		for _, h := range plan.Handlers {
			n += len(h)
		}
		return n
	case cloche.PhaseChannels:
		return len(plan.Channels)
	case cloche.PhaseScore:
		return len(plan.Score)
	}
	return len(plan.Run)
}

// ofResult says how a command ended.
func (r *programRun) ofResult(f *cloche.ProgramFailure, res cloche.Result) {
	what := fmt.Sprintf("command %d of %d in %s", *f.Command+1, r.commandsIn(f.Phase), f.Phase)
	switch {
	case res.OOM:
		f.Kind, f.Class, f.Message = cloche.FailureOOM, cloche.ClassLimit, what+" was killed by the sandbox's memory limit"
		f.Hint = "give the sandbox more memory: spec.limits.memory_bytes"
	case res.SandboxLost:
		r.ofEnd(f, res.Reason)
	case res.TimedOut:
		f.Kind, f.Class, f.Message = cloche.FailureTimeout, cloche.ClassLimit, what+" ran into its timeout"
		if res.Reason != "" {
			f.Message = what + ": " + res.Reason
		}
	case res.ExitCode != nil:
		f.Kind, f.Class, f.Message = cloche.FailureExit, cloche.ClassUser, fmt.Sprintf("%s ended with status %d", what, *res.ExitCode)
	case res.Signal != "":
		f.Kind, f.Class, f.Message = cloche.FailureExit, cloche.ClassUser, what+" was ended by signal "+res.Signal
	default:
		f.Kind, f.Class, f.Retryable, f.Message = cloche.FailureInternal, cloche.ClassInfra, true, what+": "+res.Reason
	}
}

// ofEnd says how a sandbox ended that is not there any more.
func (r *programRun) ofEnd(f *cloche.ProgramFailure, reason string) {
	sb, err := r.s.opts.Sandboxes.Get(r.caller, r.sandbox())
	p := r.look()
	life := int64(0)
	if p.Sandbox != nil {
		life = p.Sandbox.Limits.LifetimeMS
	}
	why := sb.TerminalReason
	if e, ok := errors.AsType[*cloche.Error](err); ok {
		why = e.TerminalReason
	}
	switch {
	case why == cloche.EndedOOM:
		f.Kind, f.Class, f.Message = cloche.FailureOOM, cloche.ClassLimit, "the sandbox's memory limit ended it"
	case why == cloche.EndedQuota:
		f.Kind, f.Class, f.Message = cloche.FailurePolicy, cloche.ClassLimit, "the sandbox's workspace held more than it may"
	case why == cloche.EndedIdle || why == cloche.EndedLease:
		f.Kind, f.Class, f.Message = cloche.FailureExpired, cloche.ClassLimit, "the lease of the sandbox was over"
	case why == cloche.EndedTTL || life > 0 && !time.Now().Before(p.Sandbox.CreatedAt.Add(time.Duration(life)*time.Millisecond)):
		f.Kind, f.Class, f.Message = cloche.FailureExpired, cloche.ClassLimit, "the lifetime of the sandbox was over"
		f.Hint = "give it a longer one: spec.limits.lifetime_ms"
	case why == cloche.EndedLost || why == cloche.EndedShutdown || err == nil && sb.State == cloche.StateLost || err == nil && sb.State == cloche.StateRunning:
		f.Kind, f.Class, f.Retryable, f.Message = cloche.FailureLost, cloche.ClassInfra, true, "the sandbox died"
		if reason != "" {
			f.Message = reason
		}
	default:
		f.Kind, f.Class, f.Message = cloche.FailureEnded, cloche.ClassUser, "the sandbox was ended by a caller"
	}
}

// ofError says what an error of the house means for the program.
func (r *programRun) ofError(f *cloche.ProgramFailure, e *cloche.Error) {
	f.Message, f.Hint, f.Code, f.Rule, f.Retryable = e.Message, e.Hint, e.Code, e.Rule, e.Retryable
	if id := r.sandbox(); id != "" {
		sb, err := r.s.opts.Sandboxes.Get(r.caller, id)
		if err != nil || sb.State != cloche.StateRunning && sb.State != cloche.StatePaused {
			r.ofEnd(f, e.Message)
			return
		}
	}
	switch e.Code {
	case cloche.CodeDenied, cloche.CodeDisabled, cloche.CodeUnauthenticated:
		f.Kind, f.Class = cloche.FailurePolicy, cloche.ClassUser
	case cloche.CodeQuota:
		f.Kind, f.Class = cloche.FailurePolicy, cloche.ClassLimit
	case cloche.CodeTooMany, cloche.CodeNoCapacity:
		f.Kind, f.Class, f.Retryable = cloche.FailureCapacity, cloche.ClassInfra, true
	case cloche.CodeInvalid, cloche.CodeNotFound, cloche.CodeExists, cloche.CodeConflict, cloche.CodeTooLarge, cloche.CodeUnsupported,
		cloche.CodeCommandNotFound, cloche.CodeNotExecutable, cloche.CodeState:
		f.Kind, f.Class = cloche.FailureRequest, cloche.ClassUser
	case cloche.CodeSandboxLost:
		r.ofEnd(f, e.Message)
	case cloche.CodeTimeout:
		f.Kind, f.Class, f.Retryable = cloche.FailureTimeout, cloche.ClassInfra, true
	case cloche.CodeCanceled, cloche.CodeUnavailable, cloche.CodeInternal:
		f.Kind, f.Class, f.Retryable = cloche.FailureInternal, cloche.ClassInfra, true
	}
}

// scorable says whether there is something to score after a failure of run: the sandbox
// is there, and the program itself came to an end.
func scorable(f *cloche.ProgramFailure) bool {
	switch f.Kind {
	case cloche.FailureExit, cloche.FailureTimeout, cloche.FailureOOM:
		return f.Phase == cloche.PhaseRun
	}
	return false
}

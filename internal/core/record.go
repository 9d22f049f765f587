package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// requestIDKey is the context's key of the request id.
type requestIDKey struct{}

// WithRequestID returns a context whose audit records carry id. A front door
// sets it once for each request.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// details are what an audit record says beyond who, what and how it ended.
type details = map[string]string

// event is the part that every record has.
func event(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details) audit.Event {
	id, _ := ctx.Value(requestIDKey{}).(string)
	via := caller.Via
	if caller.UID >= 0 {
		via += " uid " + strconv.Itoa(caller.UID)
	}
	return audit.Event{RequestID: id, Tenant: caller.Tenant, Caller: via, Verb: string(verb), Sandbox: sandbox, Details: d}
}

// intend records what is about to be done. What cannot be recorded is not done.
func (s *Service) intend(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details) error {
	e := event(ctx, caller, verb, sandbox, d)
	e.Outcome = audit.Granted
	return s.opts.Audit.Record(ctx, e)
}

// refused records what was not begun, and returns err.
func (s *Service) refused(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, err error) error {
	return s.outcome(ctx, caller, verb, sandbox, d, audit.Refused, err)
}

// done records what became of what was begun, and returns err. That it could
// not be recorded is logged: it is done, and to report a failure would be a lie.
func (s *Service) done(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, err error) error {
	out := audit.Done
	if err != nil {
		out = audit.Failed
	}
	return s.outcome(ctx, caller, verb, sandbox, d, out, err)
}

func (s *Service) outcome(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, out audit.Outcome, err error) error {
	e := event(ctx, caller, verb, sandbox, d)
	e.Outcome = out
	if err != nil {
		e.Code = string(cloche.CodeOf(err))
		if ce, ok := errors.AsType[*cloche.Error](err); ok {
			e.Rule = ce.Rule
		}
	}
	if rerr := s.opts.Audit.Record(context.WithoutCancel(ctx), e); rerr != nil {
		s.log.Error("the audit log cannot be written", "verb", verb, "sandbox", sandbox, "outcome", out, "error", rerr)
	}
	return err
}

// Ended records that a sandbox ended without being asked to.
func (s *Service) Ended(sb cloche.Sandbox) {
	e := audit.Event{Tenant: sb.Tenant, Verb: "lost", Sandbox: sb.ID, Outcome: audit.Failed, Details: details{"reason": sb.Reason}}
	if err := s.opts.Audit.Record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", sb.ID, "error", err)
	}
}

func (s *Service) execDetails(req cloche.ExecRequest) details {
	return audit.ExecDetails(req, audit.Disclosure{Argv: s.opts.Rules.AuditArgv()})
}

func (s *Service) runDetails(req cloche.RunRequest) details {
	d := audit.SpecDetails(req.Spec)
	for k, v := range s.execDetails(req.Exec) {
		d["exec_"+k] = v
	}
	return d
}

// createdDetails are what policy and this machine made of a request.
func createdDetails(sb cloche.Sandbox, d details) details {
	d = maps.Clone(d)
	if sb.ID != "" {
		d["engine"], d["tier"], d["image_digest"] = sb.Engine, string(sb.Tier), sb.ImageDigest
	}
	return d
}

// resultDetails are how an exec ended.
func resultDetails(r cloche.Result, d details) details {
	d = maps.Clone(d)
	d["exec_id"], d["duration_ms"] = r.ExecID, strconv.FormatInt(r.DurationMS, 10)
	switch {
	case r.ExitCode != nil:
		d["exit_code"] = strconv.Itoa(*r.ExitCode)
	case r.Signal != "":
		d["signal"] = r.Signal
	}
	for k, on := range map[string]bool{"timed_out": r.TimedOut, "oom": r.OOM, "sandbox_lost": r.SandboxLost} {
		if on {
			d[k] = "true"
		}
	}
	d["output_bytes"] = fmt.Sprint(r.StdoutInfo.Kept + r.StdoutInfo.Dropped + r.StderrInfo.Kept + r.StderrInfo.Dropped)
	return d
}

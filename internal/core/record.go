package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
)

// requestIDKey is the context key of the request ID.
type requestIDKey struct{}

// WithRequestID returns a context whose audit records have this request ID. An API server sets it
// once for each request.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// details are the details of an audit record, in addition to the caller, the operation and the
// outcome.
type details = map[string]string

// eventOf returns the part that every record has.
func eventOf(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details) audit.Event {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return audit.Event{RequestID: id, Tenant: caller.Tenant, Caller: caller.Origin(), Verb: string(verb), Sandbox: sandbox, Details: d}
}

// intend records an operation before it begins. An operation that cannot be recorded does not
// begin.
func (s *Service) intend(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details) error {
	e := eventOf(ctx, caller, verb, sandbox, d)
	e.Outcome = audit.Granted
	return s.record(ctx, e)
}

// recorded records an operation before it begins, runs it, and records its result.
func (s *Service) recorded(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, do func() error) error {
	if err := s.intend(ctx, caller, verb, sandbox, d); err != nil {
		return err
	}
	err := do()
	return s.done(context.WithoutCancel(ctx), caller, verb, sandbox, d, err)
}

// refused records an operation that did not begin, and returns err.
func (s *Service) refused(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, err error) error {
	var rule string
	if ce, ok := errors.AsType[*api.Error](err); ok {
		rule = ce.Rule
	}
	s.publish(caller, verb, sandbox, rule, err)
	return s.outcome(ctx, caller, verb, sandbox, d, audit.Refused, err)
}

// done records the result of an operation, and returns err. If that fails, it is only logged: the
// operation was carried out, so an error would be wrong.
func (s *Service) done(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, err error) error {
	out := audit.Done
	if err != nil {
		out = audit.Failed
	}
	return s.outcome(ctx, caller, verb, sandbox, d, out, err)
}

func (s *Service) outcome(ctx context.Context, caller Caller, verb policy.Verb, sandbox string, d details, out audit.Outcome, err error) error {
	err = fullDisk(err)
	e := eventOf(ctx, caller, verb, sandbox, d)
	e.Outcome = out
	if err != nil {
		s.metrics.Failed(string(verb), api.CodeOf(err))
		e.Code = string(api.CodeOf(err))
		if ce, ok := errors.AsType[*api.Error](err); ok {
			e.Rule = ce.Rule
		}
	}
	if rerr := s.record(context.WithoutCancel(ctx), e); rerr != nil {
		s.log.Error("the audit log cannot be written", "verb", verb, "sandbox", sandbox, "outcome", out, "error", rerr)
	}
	return err
}

// fullDisk returns err, or an error that says that the disk is full if that is the only cause.
func fullDisk(err error) error {
	if err == nil || api.CodeOf(err) != api.CodeInternal || !hostfile.IsFull(err) {
		return err
	}
	e := api.Errorf(api.CodeNoCapacity, "the disk is full where Cloche keeps its state").WithCause(err)
	e.Retryable = true
	return e.WithHint("free space or inodes there, and try again")
}

// Ended records that a sandbox ended without a request.
func (s *Service) Ended(sb api.Sandbox) {
	e := audit.Event{Tenant: sb.Tenant, Verb: "lost", Sandbox: sb.ID, Outcome: audit.Failed, Details: details{"reason": sb.Reason}}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", sb.ID, "error", err)
	}
}

// Happened records what Cloche did to a sandbox by itself. If no caller requested an end or a suspend, the event
// has its reason.
func (s *Service) Happened(h api.Event) {
	if h.Reason == "" || h.Kind != api.EventStopped && h.Kind != api.EventRemoved && h.Kind != api.EventSuspended {
		return
	}
	e := audit.Event{Tenant: h.Tenant, Verb: string(h.Kind), Sandbox: h.Sandbox, Outcome: audit.Done, Details: details{"reason": h.Reason}}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", h.Sandbox, "error", err)
	}
}

// Refused records an access by a program inside that a rule on a path refused, and publishes an
// event.
func (s *Service) Refused(sb api.Sandbox, r pathrule.Denial) {
	e := audit.Event{
		Tenant: sb.Tenant, Caller: "program", Verb: audit.VerbUsePath, Sandbox: sb.ID, Outcome: audit.Refused,
		Code: string(api.CodeDenied), Rule: r.Rule, Details: details{},
	}
	said := fmt.Sprintf("%d more refusals are not told", r.Missed)
	if r.Rule != "" {
		e.Details["op"], e.Details["mount"], e.Details["path"] = r.Op, r.Mount, r.Path
		e.Details["program"], e.Details["uid"] = r.Program, strconv.FormatUint(uint64(r.UID), 10)
		said = fmt.Sprintf("%.20q tried to %.20q %.200q in %s, which %s", r.Program, r.Op, r.Path, r.Mount, meaning[r.Access])
		if r.Missed > 0 {
			said += fmt.Sprintf("; %d refusals before it are not told", r.Missed)
		}
	}
	if r.Missed > 0 {
		e.Details["not_told"] = strconv.FormatInt(r.Missed, 10)
	}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", sb.ID, "error", err)
	}
	s.publishEvent(api.Event{
		Kind: api.EventRefused, Tenant: sb.Tenant, Sandbox: sb.ID, Name: sb.Name, Verb: e.Verb, Rule: r.Rule, Reason: said,
	})
}

// RefusedConnection records that a server in front of the daemon, such as LangBot's box runtime,
// refused a connection, and how many earlier refusals have no record.
func (s *Service) RefusedConnection(remote, reason string, notTold int64) {
	d := details{"remote": remote, "reason": reason}
	if notTold > 0 {
		d["not_told"] = strconv.FormatInt(notTold, 10)
	}
	e := audit.Event{Caller: "connection", Verb: audit.VerbConnect, Outcome: audit.Refused, Code: string(api.CodeUnauthenticated), Details: d}
	if err := s.opts.Audit.Record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "error", err)
	}
}

// meaning describes each access level, in a sentence about a path.
var meaning = map[api.PathAccess]string{
	api.AccessNone:  "a rule denies",
	api.AccessRead:  "a rule lets be read only",
	api.AccessWrite: "a rule keeps in its place",
}

// Used records what a sandbox used from its creation to its end.
func (s *Service) Used(sb api.Sandbox, u api.AuditUsed) {
	u.Labels = sb.Labels
	e := audit.Event{Tenant: sb.Tenant, Verb: audit.VerbUsage, Sandbox: sb.ID, Outcome: audit.Done, Usage: &u}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", sb.ID, "error", err)
	}
}

// Left records allowed and refused egress.
func (s *Service) Left(sb api.Sandbox, rec api.EgressRecord) {
	d := details{"seq": strconv.FormatInt(rec.Seq, 10)}
	for k, v := range map[string]string{
		"flow": rec.Flow, "name": rec.Name, "addr": rec.Addr, "resolved_by": rec.ResolvedBy, "protocol": rec.Protocol,
		"reason": rec.Reason, "method": rec.Method, "path": rec.Path, "secrets": strings.Join(rec.Secrets, ","),
	} {
		if v != "" {
			d[k] = v
		}
	}
	for k, v := range map[string]int64{
		"port": int64(rec.Port), "bytes_out": rec.BytesOut, "bytes_in": rec.BytesIn, "duration_ms": rec.DurationMS,
		"status": int64(rec.Status), "suppressed": rec.Suppressed,
	} {
		if v != 0 {
			d[k] = strconv.FormatInt(v, 10)
		}
	}
	e := audit.Event{Tenant: sb.Tenant, Verb: "egress." + string(rec.Kind), Sandbox: sb.ID, Outcome: audit.Done, Details: d}
	switch rec.Kind {
	case api.EgressRefused:
		s.metrics.EgressRefused(sb.Engine, rec.Suppressed)
		e.Outcome, e.Rule = audit.Refused, rec.Rule
	default:
		if rec.Rule != "" {
			d["rule"] = rec.Rule
		}
	}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", sb.ID, "error", err)
	}
}

func (s *Service) execDetails(req api.ExecRequest) details {
	return audit.ExecDetails(req, audit.Disclosure{Argv: s.rules().AuditArgv(), Redactor: s.opts.Redactor})
}

func (s *Service) runDetails(req api.RunRequest) details {
	d := audit.SpecDetails(req.Spec)
	for k, v := range s.execDetails(req.Exec) {
		d["exec_"+k] = v
	}
	return d
}

// createdDetails returns what policy and this machine changed in a request.
func createdDetails(sb api.Sandbox, d details) details {
	d = maps.Clone(d)
	if sb.ID != "" {
		d["engine"], d["tier"], d["image_digest"] = sb.Engine, string(sb.Tier), sb.ImageDigest
		if sb.Snapshot != "" {
			d["snapshot"] = sb.Snapshot
		}
		// Includes the operator's rules, named as in refusals.
		in := audit.SpecDetails(api.SandboxSpec{Mounts: sb.Mounts, Workspace: &sb.Workspace})
		for _, k := range []string{"mount_rules", "workspace_rules"} {
			if in[k] != "" {
				d[k] = in[k]
			}
		}
	}
	return d
}

// resultDetails returns how an exec ended.
func resultDetails(r api.Result, d details) details {
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

// Asked records that an approval is pending or no longer pending, and publishes an event.
func (s *Service) Asked(a api.Approval) {
	kind := api.EventApprovalAnswered
	if a.State == api.ApprovalPending {
		kind = api.EventApprovalAsked
		e := audit.Event{
			Tenant: a.Tenant, Verb: string(kind), Sandbox: a.Sandbox, Outcome: audit.Done,
			Details: details{"approval": a.ID, "name": bound(a.Name), "port": strconv.Itoa(a.Port), "rule": bound(a.Rule)},
		}
		if err := s.record(context.Background(), e); err != nil {
			s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", a.Sandbox, "error", err)
		}
	}
	s.publishEvent(api.Event{Kind: kind, Tenant: a.Tenant, Sandbox: a.Sandbox, Name: a.SandboxName, Rule: a.Rule, Approval: &a})
}

// Exchanged records and counts a request that went through an endpoint.
func (s *Service) Exchanged(x api.Exchange) {
	s.metrics.Exchanged(x)
	d := details{
		"endpoint": x.Endpoint, "exchange": x.ID, "outcome": x.Outcome, "started": x.Time.Format(time.RFC3339Nano),
		"bytes_in": strconv.FormatInt(x.BytesIn, 10), "bytes_out": strconv.FormatInt(x.BytesOut, 10), "duration_ms": strconv.FormatInt(x.DurationMS, 10),
	}
	set := func(key, value string) {
		if value != "" && value != "0" {
			d[key] = value
		}
	}
	set("method", x.Method)
	set("path", x.Path)
	set("code", x.Code)
	set("status", strconv.Itoa(x.Status))
	set("upstream_status", strconv.Itoa(x.Upstream))
	set("first_byte_ms", strconv.FormatInt(x.FirstByteMS, 10))
	set("injected", strings.Join(x.Injected, " "))
	set("filtered", strings.Join(x.Filtered, " "))
	if x.Repeated {
		d["repeated"] = "true"
	}
	if p := x.Peer; p != nil {
		d["peer"] = fmt.Sprintf("uid %d pid %d", p.UID, p.PID)
	}
	if c := x.Capture; c != nil {
		set(audit.DetailRequestHeader, c.RequestHeader)
		set(audit.DetailResponseHeader, c.ResponseHeader)
		set(audit.DetailRequestBody, c.RequestBody)
		set(audit.DetailResponseBody, c.ResponseBody)
		set("omitted", strings.Join(c.Omitted, ", "))
		if c.Cut {
			d["cut"] = "true"
		}
	}
	out := audit.Done
	switch x.Outcome {
	case "denied":
		out = audit.Refused
	case "upstream_error", "bridge_error":
		out = audit.Failed
	}
	e := audit.Event{Tenant: x.Tenant, Verb: "endpoint_exchange", Sandbox: x.Sandbox, Outcome: out, Details: d}
	if err := s.record(context.Background(), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "sandbox", x.Sandbox, "error", err)
	}
}

package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	maxAuditTail  = 100_000
	maxAuditField = 256
)

// Audit calls fn with each record that o selects and the caller can see, in order. A line is valid
// only during the call. With Follow, Audit ends when ctx ends or fn returns an error.
func (s *Service) Audit(ctx context.Context, caller Caller, o api.AuditOptions, fn func(line []byte) error) error {
	sees, err := s.auditOf(ctx, caller, policy.VerbReadAudit)
	if err != nil {
		return err
	}
	switch {
	case o.After < 0:
		return api.Invalid("after", "after %d: records are counted from 1", o.After).WithHint("0 begins with the oldest that is kept")
	case o.Tail < 0 || o.Tail > maxAuditTail:
		return api.Invalid("tail", "the last %d records were asked for", o.Tail).WithHint("0, which is all, to %d", maxAuditTail)
	case o.Follow && o.Limit > 0:
		return api.Invalid("limit", "a page of what comes next was asked for").WithHint("leave out limit or follow")
	case o.Limit < 0:
		return api.Invalid("limit", "a page of %d was asked for", o.Limit).WithHint("0, which is all, or more")
	}
	for field, v := range map[string]string{"tenant": o.Tenant, "sandbox": o.Sandbox, "verb": o.Verb, "outcome": o.Outcome} {
		if len(v) > maxAuditField {
			return api.Invalid(field, "%s has %d bytes", field, len(v)).WithHint("give at most %d", maxAuditField)
		}
	}
	return s.opts.Audit.Read(ctx, o, sees, func(_ api.AuditRecord, line []byte) error { return fn(line) })
}

// VerifyAudit verifies that the audit log was not changed, or names the first bad record.
func (s *Service) VerifyAudit(ctx context.Context, caller Caller, o api.AuditVerifyOptions) (api.AuditReport, error) {
	if _, err := s.auditOf(ctx, caller, policy.VerbVerifyAudit); err != nil {
		return api.AuditReport{}, err
	}
	report, err := s.opts.Audit.Verify(ctx, o)
	if err != nil {
		return report, s.broken("verify the audit log", err)
	}
	return report, nil
}

// AuditUsage returns the total usage of ended sandboxes.
func (s *Service) AuditUsage(ctx context.Context, caller Caller, o api.AuditUsageOptions) (api.AuditUsage, error) {
	sees, err := s.auditOf(ctx, caller, policy.VerbAuditUsage)
	if err != nil {
		return api.AuditUsage{}, err
	}
	usage, err := s.opts.Audit.Usage(ctx, o, sees)
	if err != nil {
		return usage, s.broken("sum usage", err)
	}
	return usage, nil
}

// auditOf returns which records the caller can see. Like every refusal, a refusal here is recorded.
func (s *Service) auditOf(ctx context.Context, caller Caller, verb policy.Verb) (sees func(api.AuditRecord) bool, err error) {
	all, err := policy.AuthorizeAudit(caller, verb, s.rules())
	if err != nil {
		return nil, s.refused(ctx, caller, verb, "", nil, err)
	}
	if all {
		return nil, nil
	}
	return func(r api.AuditRecord) bool { return r.Tenant == caller.Tenant && r.Chain == nil }, nil
}

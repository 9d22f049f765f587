package core

import (
	"context"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Approvals returns the pending approvals of sandboxes that the caller can see.
func (s *Service) Approvals(_ context.Context, caller Caller, o api.ApprovalOptions) (api.ApprovalList, error) {
	if s.opts.Approvals == nil {
		return api.ApprovalList{}, noApprovals()
	}
	if o.Sandbox != "" {
		sb, err := s.opts.Sandboxes.Get(caller, o.Sandbox)
		if err != nil {
			return api.ApprovalList{}, err
		}
		o.Sandbox = sb.ID
	}
	return api.ApprovalList{Approvals: s.opts.Approvals.List(o.All, func(a api.Approval) bool {
		return (o.Sandbox == "" || a.Sandbox == o.Sandbox) && s.seesApproval(caller, a)
	})}, nil
}

// seesApproval reports whether the caller can see the sandbox of an approval.
func (s *Service) seesApproval(caller Caller, a api.Approval) bool {
	_, err := s.opts.Sandboxes.Get(caller, a.Sandbox)
	return err == nil
}

// AnswerApproval answers a pending approval. To approve, the caller must be the operator, or a rule
// of the operator must allow the connection to the caller.
func (s *Service) AnswerApproval(ctx context.Context, caller Caller, id string, answer api.ApprovalAnswer) (api.Approval, error) {
	if s.opts.Approvals == nil {
		return api.Approval{}, noApprovals()
	}
	d := details{"approval": bound(id), "approve": strconv.FormatBool(answer.Approve)}
	a, ok := s.opts.Approvals.Get(id)
	if !ok || !s.seesApproval(caller, a) {
		err := api.Errorf(api.CodeNotFound, "there is no approval %.60q", id).WithHint("cloche egress approvals lists what waits")
		return api.Approval{}, s.refused(ctx, caller, policy.VerbAnswer, "", d, err)
	}
	d["rule"] = a.Rule
	if a.State != api.ApprovalPending {
		return a, s.refused(ctx, caller, policy.VerbAnswer, a.Sandbox, d, answered(a))
	}
	if answer.Approve {
		c := api.EgressChange{Allow: []string{a.Rule}, ForMS: answer.ForMS}
		if answer.ForMS != 0 {
			d["for_ms"] = strconv.FormatInt(answer.ForMS, 10)
		}
		if _, err := s.changeEgress(ctx, caller, policy.VerbAnswer, a.Sandbox, c, d); err != nil {
			return a, err
		}
	} else if answer.ForMS != 0 {
		err := api.Invalid("for_ms", "a time was given with a no").WithHint("leave for_ms out: a no counts for ten minutes")
		return a, s.refused(ctx, caller, policy.VerbAnswer, a.Sandbox, d, err)
	}
	a, ok = s.opts.Approvals.Answer(id, answer.Approve, eventOf(ctx, caller, policy.VerbAnswer, a.Sandbox, nil).Caller)
	if !ok {
		return a, answered(a)
	}
	if !answer.Approve {
		return a, s.done(ctx, caller, policy.VerbAnswer, a.Sandbox, d, nil)
	}
	return a, nil
}

func answered(a api.Approval) error {
	return api.Errorf(api.CodeState, "the approval %s is %s", a.ID, a.State).
		WithHint("`cloche egress allow` changes what the sandbox may reach at any time")
}

// noApproval says why connections cannot be held for approval here. It is nil if they can.
func (s *Service) noApproval() *api.Error {
	if s.opts.Approvals != nil {
		return nil
	}
	return noApprovals()
}

func noApprovals() *api.Error {
	return api.Errorf(api.CodeUnavailable, "approvals are kept by a daemon, and none runs").WithHint("start one with: cloche serve")
}

package mockcore

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Egress has one rule that is for a while.
func (c *Core) Egress(_ context.Context, caller core.Caller, ref string) (api.EgressRules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.EgressRules{}, err
	}
	return sb.rules(), nil
}

func (sb *sandbox) rules() api.EgressRules {
	return api.EgressRules{
		Network: api.NetworkOn, Egress: api.Egress{Allow: slices.Concat([]string{"pypi.org", "@npm"}, sb.allowed), Deny: []string{"a.org"}},
		Temporary: []api.TemporaryRule{{Rule: "@npm", ExpiresAt: Epoch().Add(time.Minute)}}, Operator: []string{"egress.deny:b.org"},
		Used: api.EgressLimits{Connections: 2, BytesOut: 10, BytesIn: 20},
	}
}

// ChangeEgress adds what is allowed, and refuses "forbidden.org".
func (c *Core) ChangeEgress(_ context.Context, caller core.Caller, ref string, change api.EgressChange) (api.EgressRules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.EgressRules{}, err
	}
	if slices.Contains(change.Allow, "forbidden.org") {
		e := api.Errorf(api.CodeDenied, "forbidden.org was asked for").WithHint("ask for another")
		e.Rule = "egress.allow"
		return api.EgressRules{}, e
	}
	sb.allowed = append(sb.allowed, change.Allow...)
	return sb.rules(), nil
}

// ReplaceEgress allows what is asked for.
func (c *Core) ReplaceEgress(_ context.Context, caller core.Caller, ref string, p api.EgressPolicy) (api.EgressRules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.EgressRules{}, err
	}
	sb.allowed = nil
	if p.Egress != nil {
		sb.allowed = p.Egress.Allow
	}
	return sb.rules(), nil
}

// EgressLog has a connection and a refusal. With Follow it waits for the end of ctx.
func (c *Core) EgressLog(ctx context.Context, caller core.Caller, ref string, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	c.mu.Lock()
	_, err := c.find(caller, ref)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	for _, rec := range []api.EgressRecord{
		{
			Seq: 1, Time: Epoch(), Kind: api.EgressClosed, Flow: "fl-1", Name: "pypi.org", Port: 443, Addr: "192.0.2.1", ResolvedBy: "cloche",
			Protocol: "tls", Rule: "pypi.org", BytesOut: 517, BytesIn: 4096, DurationMS: 12,
		},
		{
			Seq: 2, Time: Epoch(), Kind: api.EgressRefused, Name: "evil.org", Rule: "egress.name", Reason: "evil.org is in no list\x1b[2J",
			Allow: "evil.org", Hint: "to allow it: cloche egress allow box \"evil.org\"",
		},
	} {
		if rec.Seq <= o.After || len(o.Kinds) > 0 && !slices.Contains(o.Kinds, rec.Kind) {
			continue
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
	if o.Follow {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func approval() api.Approval {
	return api.Approval{
		ID: "ap-1", Tenant: "local", Sandbox: "sb-1", SandboxName: "box", Name: "evil.org", Port: 443, Rule: "evil.org", State: api.ApprovalPending,
		AskedAt: Epoch(), Asked: 1, ExpiresAt: Epoch().Add(time.Minute),
	}
}

// Approvals has one.
func (c *Core) Approvals(context.Context, core.Caller, api.ApprovalOptions) (api.ApprovalList, error) {
	return api.ApprovalList{Approvals: []api.Approval{approval()}}, nil
}

// AnswerApproval answers that one.
func (c *Core) AnswerApproval(_ context.Context, _ core.Caller, id string, answer api.ApprovalAnswer) (api.Approval, error) {
	a := approval()
	if id != a.ID {
		return api.Approval{}, api.Errorf(api.CodeNotFound, "there is no approval %.20q", id).WithHint("list them")
	}
	at := Epoch()
	a.State, a.AnsweredAt, a.AnsweredBy = api.ApprovalRejected, &at, "unix uid 0"
	if answer.Approve {
		a.State = api.ApprovalApproved
	}
	return a, nil
}

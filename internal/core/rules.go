package core

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// verbReload is the audit name of a change of the rules, which is not an operation of the API.
const verbReload policy.Verb = "reload_policy"

// MaySuspend returns an error if a tenant may not have so many bytes of saved memory.
func (s *Service) MaySuspend(tenant string, bytes int64) error {
	return s.rules().CheckSuspended(tenant, bytes)
}

// UseRules puts new rules into force: they decide every later request. What was granted before
// stays granted, except for egress: the operator's deny rules apply at once. digest is the file's.
// If the change cannot be recorded, the rules are not used. The event belongs to no tenant, so only
// the operator sees it.
func (s *Service) UseRules(ctx context.Context, rules rules.Rules, digest string) error {
	e := audit.Event{Tenant: policy.LocalTenant, Caller: "daemon", Verb: string(verbReload), Outcome: audit.Done, Details: details{"policy_sha256": digest}}
	if err := s.record(ctx, e); err != nil {
		return err
	}
	s.inUse.Store(&rules)
	s.RestoreRules()
	s.publishEvent(api.Event{Kind: api.EventPolicyReloaded, Reason: "sha256 " + digest})
	s.RefreshEgress(ctx)
	return nil
}

// RejectRules records that new rules are invalid and that the old ones stay in force.
func (s *Service) RejectRules(ctx context.Context, digest string, why error) {
	e := audit.Event{
		Tenant: policy.LocalTenant, Caller: "daemon", Verb: string(verbReload), Outcome: audit.Refused, Code: string(api.CodeOf(why)),
		Details: details{"reason": bound(why.Error())},
	}
	if digest != "" {
		e.Details["policy_sha256"] = digest
	}
	if err := s.record(ctx, e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", verbReload, "error", err)
	}
	s.rejected.Store(new(bound(why.Error())))
	s.publishEvent(api.Event{Kind: api.EventPolicyRejected, Reason: bound(why.Error())})
}

// RestoreRules records that the policy file matches the rules in force again after a rejection.
func (s *Service) RestoreRules() { s.rejected.Store(nil) }

// ExplainPolicy returns how policy would judge a request, and why. Nothing is executed. The
// operator can ask on behalf of another caller.
func (s *Service) ExplainPolicy(ctx context.Context, caller Caller, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	as, err := s.askedAs(caller, q)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	rules := s.rules()
	ask, err := policy.QuestionOf(q)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	if ask.OnSandbox() && q.Sandbox != "" {
		// Look names up as the caller that the question is about. What that caller's key allows is
		// judged below.
		names := Caller{Tenant: as.Tenant, Operator: caller.Operator, UID: -1}
		sb, err := s.asked(names, q, rules)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeDenied {
			return api.PolicyAnswer{
				Verb: string(ask.Verb), Tenant: as.Tenant, Operator: as.Operator, Refusal: e,
				Steps: []api.PolicyStep{{Name: "name", Refused: true}},
			}, nil
		}
		if err != nil {
			return api.PolicyAnswer{}, err
		}
		ask.Sandbox = new(policy.SettingsOf(sb))
		ask.Sandbox.Ref = q.Sandbox
		ask.Secrets = s.opts.Sandboxes.HasSecrets()
		if q.Endpoint != nil {
			ask.Others = otherEndpoints(sb, q.Endpoint.Name)
		}
		return policy.Explain(ask, as, rules), nil
	}
	facts, err := s.facts(ctx, as, &ask.Request.Spec, rules)
	if err != nil {
		// The error is already the refusal.
		ce, ok := errors.AsType[*api.Error](err)
		if !ok {
			return api.PolicyAnswer{}, err
		}
		return api.PolicyAnswer{
			Verb: string(ask.Verb), Tenant: as.Tenant, Operator: as.Operator, Refusal: ce,
			Steps: []api.PolicyStep{{Name: "snapshot", Refused: true}},
		}, nil
	}
	ask.Request.Facts = facts
	return policy.Explain(ask, as, rules), nil
}

// asked returns the sandbox that a question is about.
func (s *Service) asked(names Caller, q api.PolicyQuestion, rules rules.Rules) (api.Sandbox, error) {
	if v := policy.Verb(q.Verb); q.Exec != nil && (v == policy.VerbExec || v == policy.VerbStart) {
		return s.target(names, q.Sandbox, q.Exec.Naming, rules)
	}
	return s.opts.Sandboxes.Get(names, q.Sandbox)
}

// askedAs returns the caller on whose behalf a question is asked.
func (s *Service) askedAs(caller Caller, q api.PolicyQuestion) (Caller, error) {
	switch {
	case q.Tenant == "" && q.Key == "":
		return caller, nil
	case !caller.Operator && (q.Key == "" && q.Tenant == caller.Tenant || q.Tenant == "" && q.Key == caller.Key):
		return caller, nil
	case !caller.Operator:
		e := api.Errorf(api.CodeDenied, "only the operator may ask what another would get")
		e.Rule = "operator_only"
		return Caller{}, e.WithHint("leave tenant and key out")
	case q.Key == "":
		return policy.TenantCaller(q.Tenant)
	case q.Tenant != "":
		return Caller{}, api.Invalid("tenant", "a tenant and a key are set together").WithHint("a key is of one tenant; leave tenant out")
	case s.opts.Keys == nil:
		return Caller{}, noKeys()
	}
	k, err := s.opts.Keys.Get(q.Key)
	return policy.KeyCaller(k), err
}

// Secrets returns the secrets that the caller can use: names, hosts and modes.
func (s *Service) Secrets(_ context.Context, caller Caller) (api.SecretList, error) {
	return api.SecretList{Secrets: policy.SecretsOf(caller, s.rules())}, nil
}

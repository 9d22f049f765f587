package core

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxEgressTail is the maximum number of last records that a request can ask for.
const maxEgressTail = 100_000

// Egress returns the rules in force in a sandbox.
func (s *Service) Egress(_ context.Context, caller Caller, ref string) (api.EgressRules, error) {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.EgressRules{}, err
	}
	grant, used, err := s.opts.Sandboxes.Egress(caller, policy.VerbEgress, sb.ID)
	if err != nil {
		return api.EgressRules{}, err
	}
	if sb.Network != api.NetworkOn {
		return api.EgressRules{Network: sb.Network, Generation: grant.Generation, Applied: grant.Generation}, nil
	}
	r := grant.InForce(time.Now())
	r.Used, r.Applied = used, r.Generation
	return r, nil
}

// ChangeEgress changes the rules of a running sandbox. The new rules also apply to open
// connections.
func (s *Service) ChangeEgress(ctx context.Context, caller Caller, ref string, c api.EgressChange) (api.EgressRules, error) {
	return s.changeEgress(ctx, caller, policy.VerbChangeEgress, ref, c, changeDetails(c))
}

func changeDetails(c api.EgressChange) details {
	d := details{}
	for k, list := range map[string][]string{"allow": c.Allow, "deny": c.Deny, "remove": c.Remove} {
		if len(list) > 0 {
			d[k] = bound(strings.Join(list, " "))
		}
	}
	if c.ForMS != 0 {
		d["for_ms"] = strconv.FormatInt(c.ForMS, 10)
	}
	return d
}

func (s *Service) changeEgress(ctx context.Context, caller Caller, verb policy.Verb, ref string, c api.EgressChange, d details) (api.EgressRules, error) {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.EgressRules{}, s.refused(ctx, caller, verb, "", d, err)
	}
	if sb.Network != api.NetworkOn {
		return api.EgressRules{}, s.refused(ctx, caller, verb, sb.ID, d, policy.NoEgress())
	}
	settings, rules := policy.SettingsOf(sb), s.rules()
	begun := false
	grant, err := s.opts.Sandboxes.SetEgress(ctx, caller, verb, sb.ID, func(g policy.EgressGrant) (policy.EgressGrant, error) {
		next, err := policy.DecideEgressChange(c, g, settings, caller, rules, time.Now())
		if err != nil {
			return next, err
		}
		if len(next.Requests)+len(next.Demanded) > 0 && s.opts.NoInterception != nil {
			return next, new(*s.opts.NoInterception)
		}
		err = s.intend(ctx, caller, verb, sb.ID, d)
		begun = err == nil
		return next, err
	})
	if !begun {
		return api.EgressRules{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	r := grant.InForce(time.Now())
	if applied, serr := s.opts.Sandboxes.SettleEgress(ctx, caller, verb, sb.ID); err == nil && serr == nil {
		r.Applied = applied
	}
	return r, s.done(ctx, caller, verb, sb.ID, d, err)
}

// ReplaceEgress replaces all egress rules of a running sandbox that was created with a network. It
// returns when no connection that the new rules forbid is open.
func (s *Service) ReplaceEgress(ctx context.Context, caller Caller, ref string, asked api.EgressPolicy) (api.EgressRules, error) {
	const verb = policy.VerbChangeEgress
	d := policyDetails(asked)
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.EgressRules{}, s.refused(ctx, caller, verb, "", d, err)
	}
	present, used, err := s.opts.Sandboxes.Egress(caller, verb, sb.ID)
	if err != nil {
		return api.EgressRules{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if asked.Network == api.NetworkNone && asked.Egress == nil && sb.Network == api.NetworkNone {
		return api.EgressRules{Network: sb.Network, Generation: present.Generation, Applied: present.Generation}, nil // nothing changes
	}
	settings, rules := policy.SettingsOf(sb), s.rules()
	return s.putEgress(ctx, caller, sb, d, func(g policy.EgressGrant) (policy.EgressGrant, error) {
		return policy.DecideEgressPolicy(asked, g, used, settings, caller, rules, time.Now())
	})
}

// policyDetails returns the details of a complete policy for the audit record.
func policyDetails(asked api.EgressPolicy) details {
	d := details{"replace": "true"}
	if asked.Network != "" {
		d["network"] = bound(asked.Network)
	}
	if e := asked.Egress; e != nil {
		for k, list := range map[string][]string{"allow": e.Allow, "deny": e.Deny} {
			if len(list) > 0 {
				d[k] = bound(strings.Join(list, " "))
			}
		}
	}
	return d
}

// putEgress calls decide with the present grant, applies the new grant and confirms that it is in
// force.
func (s *Service) putEgress(ctx context.Context, caller Caller, sb api.Sandbox, d details, decide func(policy.EgressGrant) (policy.EgressGrant, error)) (api.EgressRules, error) {
	const verb = policy.VerbChangeEgress
	begun := false
	grant, err := s.opts.Sandboxes.SetEgress(ctx, caller, verb, sb.ID, func(g policy.EgressGrant) (policy.EgressGrant, error) {
		next, err := decide(g)
		if err != nil {
			return next, err
		}
		if len(next.Requests)+len(next.Demanded) > 0 && s.opts.NoInterception != nil {
			return next, new(*s.opts.NoInterception)
		}
		err = s.intend(ctx, caller, verb, sb.ID, d)
		begun = err == nil
		return next, err
	})
	if !begun {
		return api.EgressRules{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err != nil {
		return api.EgressRules{}, s.done(ctx, caller, verb, sb.ID, d, err)
	}
	r := grant.InForce(time.Now())
	r.Applied, err = s.opts.Sandboxes.SettleEgress(ctx, caller, verb, sb.ID)
	d["generation"] = strconv.FormatInt(r.Applied, 10)
	return r, s.done(ctx, caller, verb, sb.ID, d, err)
}

// EgressLog calls fn with records of allowed and refused egress. With Follow it ends when ctx or
// the sandbox ends, or when fn returns an error.
func (s *Service) EgressLog(ctx context.Context, caller Caller, ref string, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	for _, k := range o.Kinds {
		if !slices.Contains(api.EgressKinds(), k) {
			return api.Invalid("kind", "there is no record of kind %.60q", string(k)).WithHint("such as %s", api.EgressRefused)
		}
	}
	if o.Tail < 0 || o.Tail > maxEgressTail {
		return api.Invalid("tail", "the last %d records were asked for", o.Tail).WithHint("0, which is all, to %d", maxEgressTail)
	}
	return s.opts.Sandboxes.EgressLog(ctx, caller, policy.VerbEgressLog, ref, o, fn)
}

// errSame means that a refresh changes nothing.
var errSame = errors.New("the rules are the same")

// RefreshEgress applies the operator's present rules to every sandbox with a network.
func (s *Service) RefreshEgress(ctx context.Context) {
	rules, fixture := s.rules(), policy.Caller{Tenant: policy.LocalTenant, Operator: true, UID: -1}
	for o := (api.ListOptions{States: []api.State{api.StateRunning, api.StatePaused}, Limit: maxPage}); ; {
		page := s.opts.Sandboxes.List(fixture, o)
		for _, sb := range page.Sandboxes {
			if sb.Network != api.NetworkOn || sb.Degraded != "" {
				continue
			}
			_, err := s.opts.Sandboxes.SetEgress(ctx, fixture, policy.VerbChangeEgress, sb.ID, func(g policy.EgressGrant) (policy.EgressGrant, error) {
				next, err := policy.RefreshEgress(g, policy.SettingsOf(sb), rules, time.Now())
				if err == nil && reflect.DeepEqual(g, next) {
					err = errSame
				}
				return next, err
			})
			if err != nil && !errors.Is(err, errSame) {
				s.log.Error("hold a sandbox to the rules of egress", "sandbox", sb.ID, "error", err)
			}
		}
		if o.Cursor = page.Next; o.Cursor == "" {
			return
		}
	}
}

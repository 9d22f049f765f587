package policy

import (
	"cmp"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const engineAuto = "auto"

// rank orders tiers by strength. Cloche cannot verify a remote tier, so it satisfies no minimum.
func rank(t api.Tier) int {
	switch t {
	case api.TierNamespace:
		return 1
	case api.TierGVisor:
		return 2
	case api.TierMicroVM:
		return 3
	}
	return 0
}

// AtLeast reports whether a tier isolates at least as strongly as another.
func AtLeast(t, least api.Tier) bool { return rank(t) >= rank(least) }

// checkEngine chooses the engine. "auto" is the profile's engine, the rule's, or the first usable
// one of at least the minimum tier. The minimum is gvisor unless a rule lowers it, so a machine
// that lacks something never falls back silently to a shared kernel. A virtual machine is never
// chosen automatically, because the operator must decide about its cost.
func checkEngine(d *decision) *api.Error {
	chosen, autoErr := d.autoEngine()
	name := d.spec.Engine
	if name == "" || name == engineAuto {
		if autoErr != nil {
			return autoErr
		}
		return d.takeEngine(chosen)
	}
	report, ok := d.findEngine(name)
	if !ok {
		return d.noEngine(name)
	}
	if !d.caller.Operator {
		if autoErr != nil {
			return autoErr
		}
		if chosen.Name != name {
			rule := d.engineRule()
			return rules.Denied(rule, "engine", "engine %s was asked for, and the operator's choice is %s", rules.Quote(name), chosen.Name).
				WithHint("leave engine out; the smallest rule that would allow it is `%s: %s`", rule, rules.YamlString(name))
		}
	}
	return d.takeEngine(report)
}

// engineRule returns the key that names the engine, or that would name it.
func (d *decision) engineRule() string {
	if d.profile.Engine != "" {
		return rules.KeyPath(d.profile.Name, "engine")
	}
	return "engine"
}

func (d *decision) autoEngine() (api.EngineReport, *api.Error) {
	if name := cmp.Or(d.profile.Engine, d.rules.Engine); name != "" && name != engineAuto {
		report, ok := d.findEngine(name)
		if !ok {
			e := api.Errorf(api.CodeUnavailable, "the operator's rule %s names %s, which this build does not have", d.engineRule(), rules.Quote(name))
			return report, e.WithHint("the engines are %s", d.engineNames())
		}
		return report, nil
	}
	least := cmp.Or(d.rules.MinTier, api.TierGVisor)
	var reasons []string
	weaker := api.Tier("")
	for _, r := range d.facts.Engines {
		switch {
		case r.Tier == api.TierRemote:
			// It is chosen by name only.
		case rank(r.Tier) < rank(least):
			reasons = append(reasons, r.Name+": tier "+string(r.Tier)+" is below "+string(least))
			if r.Usable && rank(r.Tier) > rank(weaker) {
				weaker = r.Tier
			}
		case r.Tier == api.TierMicroVM && least != api.TierMicroVM:
			reasons = append(reasons, r.Name+": a microvm is chosen by name or by min_tier only")
		case !r.Usable:
			reasons = append(reasons, r.Name+": "+d.problems(r))
		default:
			return r, nil
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"this build has none"}
	}
	e := api.Errorf(api.CodeUnavailable, "no engine is usable: %s", strings.Join(reasons, "; "))
	e.Field = "engine"
	if weaker != "" && d.caller.Operator {
		return api.EngineReport{}, e.WithHint("`cloche doctor` says how to fix it; the smallest rule that accepts less is `min_tier: %s`", weaker)
	}
	return api.EngineReport{}, e.WithHint("`cloche doctor` says how to fix it")
}

// takeEngine accepts a report if it is usable and strong enough.
func (d *decision) takeEngine(r api.EngineReport) *api.Error {
	if least := d.rules.MinTier; least != "" && rank(r.Tier) < rank(least) {
		return rules.Denied("min_tier", "engine", "engine %s isolates by tier %s, and the least that is accepted is %s", r.Name, r.Tier, least).
			WithHint("choose a stronger engine; the smallest rule that would allow it is `min_tier: %s`", r.Tier)
	}
	if !r.Usable {
		e := api.Errorf(api.CodeUnavailable, "engine %s is not usable: %s", r.Name, d.problems(r))
		e.Field = "engine"
		return e.WithHint("`cloche doctor` says how to fix it")
	}
	d.because("engine", d.engineBy())
	d.engine = r
	d.spec.Engine = r.Name
	return nil
}

// engineBy returns what decides about the engine.
func (d *decision) engineBy() string {
	switch {
	case d.profile.Engine != "" && d.profile.Engine != engineAuto:
		return d.engineRule()
	case d.profile.Engine == "" && d.rules.Engine != "" && d.rules.Engine != engineAuto:
		return "engine"
	case d.rules.MinTier != "":
		return "min_tier"
	}
	return rules.ByBuiltin
}

func (d *decision) findEngine(name string) (api.EngineReport, bool) {
	for _, r := range d.facts.Engines {
		if r.Name == name {
			return r, true
		}
	}
	return api.EngineReport{}, false
}

func (d *decision) noEngine(name string) *api.Error {
	e := api.Errorf(api.CodeNotFound, "there is no engine %s", rules.Quote(name))
	e.Field = "engine"
	return e.WithHint("the engines are %s", d.engineNames())
}

func (d *decision) engineNames() string {
	names := []string{engineAuto}
	for _, r := range d.facts.Engines {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// problems describes what is missing and how to fix it. The text may name paths of the host, so
// only the operator gets it.
func (d *decision) problems(r api.EngineReport) string {
	if !d.caller.Operator {
		return "the operator sees why"
	}
	var out []string
	for _, p := range r.Problems {
		s := p.What
		if p.Mend != "" {
			s += " (" + p.Mend + ")"
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return "it gives no reason"
	}
	return strings.Join(out, ", ")
}

// ChooseEngine returns the engine that a request for "auto" would get now, or the error that it
// would get. If the engine is not usable, the report is still filled in as far as the choice is
// known.
func ChooseEngine(caller Caller, set rules.Rules, reports []api.EngineReport) (api.EngineReport, error) {
	d := &decision{facts: Facts{Engines: reports}, caller: caller, rules: set}
	chosen, err := d.autoEngine()
	if err == nil {
		err = d.takeEngine(chosen)
	}
	if err != nil {
		if chosen.Name == "" && len(reports) > 0 {
			chosen.Name = reports[0].Name
		}
		return chosen, err
	}
	return chosen, nil
}

// EngineNamed reports whether the operator names one engine. Then no other engine is chosen if that
// one is not usable.
func EngineNamed(set rules.Rules) bool { return set.Engine != "" && set.Engine != engineAuto }

// checkKernel reports, for an engine that does not prevent it, that a sandbox can use up resources
// that the kernel counts per user or machine, or can see in kernel files what others do.
func checkKernel(d *decision) *api.Error {
	for _, field := range []string{api.EnforcesKernelTables, api.EnforcesKernelFiles} {
		if can, said := d.engine.Enforces[field]; said && !can.OK {
			d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	return nil
}

package policy

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// InfoOf returns what a caller can learn about the rules before any other request.
func InfoOf(caller Caller, set rules.Rules) api.Info {
	text, _ := set.Names.EffectiveTemplate()
	profiles := slices.DeleteFunc(rules.Profiles(set), func(name string) bool { return !caller.Scope.permitsProfile(name) })
	out := api.Info{
		API: api.APIVersion, Tenant: caller.Tenant, Operator: caller.Operator,
		ScopeForced: set.Names.Force, ScopeEditable: !set.Names.Force, NameTemplate: text,
		Profiles: profiles, DefaultProfile: cmp.Or(set.Defaults.Profile, api.DefaultProfile),
		Limits: api.InfoLimits{
			NameBytes: api.MaxNameLen, ArgvBytes: maxArgvBytes, StdinBytes: maxStdin, OutputBytes: api.MaxMaxOutput,
			Sandboxes: quotaOf(set, caller.Tenant).Tenant,
		},
	}
	if rate, ok := RateOf(caller, set); ok {
		out.Limits.RequestsPerSecond, out.Limits.Burst = rate.PerSecond, rate.Burst
	}
	return out
}

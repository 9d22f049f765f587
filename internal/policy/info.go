package policy

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// InfoOf returns what a caller can learn about the rules before any other request.
func InfoOf(caller Caller, rules Rules) api.Info {
	text, _ := rules.Names.template()
	profiles := slices.DeleteFunc(Profiles(rules), func(name string) bool { return !caller.Scope.permitsProfile(name) })
	out := api.Info{
		API: api.APIVersion, Tenant: caller.Tenant, Operator: caller.Operator,
		ScopeForced: rules.Names.Force, ScopeEditable: !rules.Names.Force, NameTemplate: text,
		Profiles: profiles, DefaultProfile: cmp.Or(rules.Defaults.Profile, api.DefaultProfile),
		Limits: api.InfoLimits{
			NameBytes: api.MaxNameLen, ArgvBytes: maxArgvBytes, StdinBytes: maxStdin, OutputBytes: api.MaxMaxOutput,
			Sandboxes: quotaOf(rules, caller.Tenant).Tenant,
		},
	}
	if rate, ok := RateOf(caller, rules); ok {
		out.Limits.RequestsPerSecond, out.Limits.Burst = rate.PerSecond, rate.Burst
	}
	return out
}

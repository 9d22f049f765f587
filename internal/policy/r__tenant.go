package policy

import (
	"maps"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TenantRule has the limits of one tenant. Each overrides the limit for all tenants.
type TenantRule struct {
	// MaxSandboxes limits its live sandboxes; 0 is unlimited.
	MaxSandboxes *int `yaml:"max_sandboxes"`
	// MaxSnapshots and MaxSnapshotBytes limit its snapshots; 0 is the default.
	MaxSnapshots     *int  `yaml:"max_snapshots"`
	MaxSnapshotBytes *Size `yaml:"max_snapshot_bytes"`
	// MaxWorkspaces limits its named workspaces; 0 is the default.
	MaxWorkspaces *int `yaml:"max_workspaces"`
	// Rate limits its requests.
	Rate *RateRule `yaml:"rate"`
	// Egress is what it can request in addition to what all tenants can, and its limits.
	Egress EgressPart `yaml:"egress"`
}

// RateRule limits requests: a number in a period, and a burst after a pause.
type RateRule struct {
	// Requests is the number of requests in each Per; 0 is unlimited.
	Requests int `yaml:"requests"`
	// Per is the period. The default is one second.
	Per Duration `yaml:"per"`
	// Burst is the maximum burst; 0 is Requests.
	Burst int `yaml:"burst"`
}

// maxPer is the longest period of a rate.
const maxPer = Duration(24 * time.Hour)

func ruleTenants(r Rules, report reporter) {
	ruleRate("rate", r.Rate, report)
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		field, t := "tenants."+bounded(name), r.Tenants[name]
		if !api.ValidName(name) {
			report(api.Invalid(field, "tenant %s is not valid", show(name)).WithHint("%s", nameHint()))
		}
		for _, c := range []struct {
			key string
			n   *int
		}{{"max_sandboxes", t.MaxSandboxes}, {"max_snapshots", t.MaxSnapshots}, {"max_workspaces", t.MaxWorkspaces}} {
			if c.n != nil && *c.n < 0 {
				report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, *c.n).WithHint("write a positive number, or 0 for the default"))
			}
		}
		ruleRate(field+".rate", t.Rate, report)
	}
}

func ruleRate(field string, r *RateRule, report reporter) {
	if r == nil {
		return
	}
	const most = 1 << 20
	for _, c := range []struct {
		key string
		n   int
	}{{"requests", r.Requests}, {"burst", r.Burst}} {
		if c.n < 0 || c.n > most {
			report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, c.n).WithHint("write a number of requests, at most %d", most))
		}
	}
	if r.Per < 0 || r.Per > maxPer {
		report(api.Invalid(field+".per", "%s.per is %s", field, time.Duration(r.Per)).WithHint("write a time such as 1s or 1m, at most 24h"))
	}
}

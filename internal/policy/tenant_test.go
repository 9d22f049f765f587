package policy_test

import (
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

const tenantRules = `
max_sandboxes: 100
max_sandboxes_per_tenant: 2
max_snapshots_per_tenant: 3
max_workspaces_per_tenant: 4
rate: {requests: 10, burst: 20}
tenants:
  red: {max_sandboxes: 5, max_snapshots: 6, max_workspaces: 7, rate: {requests: 60, per: 1m}}
  blue: {max_sandboxes: 0, rate: {requests: 0}}
`

func TestTenantsHaveTheirOwnLimits(t *testing.T) {
	r := mustParse(t, tenantRules)
	red, blue, other := policy.Caller{Tenant: "red", UID: -1}, policy.Caller{Tenant: "blue", UID: -1}, policy.Caller{Tenant: "other", UID: -1}
	try := func(c policy.Caller, live int) error {
		f := facts()
		f.LiveTenant, f.Live = live, live
		_, err := policy.Decide(policy.Request{Facts: f}, c, r)
		return err
	}
	if err := try(red, 4); err != nil {
		t.Error(err)
	}
	want{code: api.CodeTooMany, rule: "tenants.red.max_sandboxes", says: "5"}.check(t, try(red, 5))
	want{code: api.CodeTooMany, rule: "max_sandboxes_per_tenant", says: "2"}.check(t, try(other, 2))
	want{code: api.CodeNoCapacity, rule: "max_sandboxes"}.check(t, try(blue, 100))
	if err := try(blue, 99); err != nil {
		t.Errorf("unlimited: %v", err)
	}
	_, err := policy.DecideSnapshot(api.SnapshotRequest{}, policy.SnapshotFacts{Tenant: "red", Count: 5}, r)
	if err != nil {
		t.Error(err)
	}
	_, err = policy.DecideSnapshot(api.SnapshotRequest{}, policy.SnapshotFacts{Tenant: "red", Count: 6}, r)
	want{code: api.CodeTooMany, rule: "tenants.red.max_snapshots"}.check(t, err)
	for c, n := range map[string]int{"red": 7, "other": 4} {
		p, err := policy.DecideWorkspace(api.WorkspaceSpec{Name: "w"}, canHold, policy.Caller{Tenant: c, UID: -1}, r)
		if err != nil || p.Max() != n {
			t.Errorf("%s: %d, %v", c, p.Max(), err)
		}
	}
}

func TestRates(t *testing.T) {
	r := mustParse(t, tenantRules)
	for name, c := range map[string]struct {
		caller policy.Caller
		want   policy.Rate
		ok     bool
	}{
		"own":       {policy.Caller{Tenant: "red"}, policy.Rate{PerSecond: 1, Burst: 60, Rule: "tenants.red.rate"}, true},
		"unlimited": {policy.Caller{Tenant: "blue"}, policy.Rate{}, false},
		"all":       {policy.Caller{Tenant: "other"}, policy.Rate{PerSecond: 10, Burst: 20, Rule: "rate"}, true},
		"a key":     {policy.KeyCaller(api.Key{ID: "key-1", Tenant: "red"}), policy.Rate{PerSecond: 1, Burst: 60, Rule: "tenants.red.rate"}, true},
		"local key": {policy.KeyCaller(api.Key{ID: "key-1", Tenant: "local"}), policy.Rate{PerSecond: 10, Burst: 20, Rule: "rate"}, true},
		"operator":  {operator, policy.Rate{}, false},
	} {
		if got, ok := policy.RateOf(c.caller, r); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	e := policy.TooFast(policy.Rate{PerSecond: 1, Rule: "rate"}, 300*time.Microsecond)
	if e.Code != api.CodeTooMany || e.RetryAfterMS != 1 || e.Rule != "rate" || e.Hint == "" {
		t.Errorf("%+v", e)
	}
}

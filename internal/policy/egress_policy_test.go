package policy_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// TestSetupEgress: what setup may reach is judged beside what the sandbox itself may, and
// both or none is granted.
func TestSetupEgress(t *testing.T) {
	const text = "egress: {allow: ['*.a.org', b.org], deny: [no.a.org]}"
	set := mustParse(t, text)
	red := policy.Caller{Tenant: "red", UID: -1}
	on := func(allow ...string) *api.EgressPolicy {
		return &api.EgressPolicy{Egress: &api.Egress{Allow: allow}}
	}
	for name, tc := range map[string]struct {
		spec        api.SandboxSpec
		setup       *api.EgressPolicy
		first, then string // the networks; empty is no link
		code        api.Code
	}{
		"none, and none":        {api.SandboxSpec{}, nil, "", "", ""},
		"the same":              {api.SandboxSpec{Network: "on"}, nil, "on", "on", ""},
		"some, then none":       {api.SandboxSpec{}, on("x.a.org"), "on", "none", ""},
		"none, then some":       {api.SandboxSpec{Egress: on("b.org").Egress}, &api.EgressPolicy{Network: "none"}, "none", "on", ""},
		"none, then none":       {api.SandboxSpec{}, &api.EgressPolicy{Network: "none"}, "", "", ""},
		"too much in setup":     {api.SandboxSpec{}, on("c.org"), "", "", api.CodeDenied},
		"held back in setup":    {api.SandboxSpec{}, on("no.a.org"), "", "", api.CodeDenied},
		"too much in the run":   {api.SandboxSpec{Egress: on("c.org").Egress}, on("b.org"), "", "", api.CodeDenied},
		"nonsense":              {api.SandboxSpec{}, &api.EgressPolicy{Network: "vpn"}, "", "", api.CodeInvalid},
		"none with a list":      {api.SandboxSpec{}, &api.EgressPolicy{Network: "none", Egress: &api.Egress{}}, "", "", api.CodeInvalid},
		"a locked profile":      {api.SandboxSpec{Profile: "offline_readonly"}, on("b.org"), "", "", api.CodeDenied},
		"locked, and kept to":   {api.SandboxSpec{Profile: "offline_readonly"}, &api.EgressPolicy{Network: "none"}, "", "", ""},
		"the profile's default": {api.SandboxSpec{Profile: "network_basic"}, &api.EgressPolicy{Network: "none"}, "none", "on", ""},
	} {
		p, err := policy.Decide(policy.Request{Spec: tc.spec, Facts: facts(), Connected: true, Setup: tc.setup}, red, set)
		if api.CodeOf(err) != tc.code {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil {
			continue
		}
		first, linked := p.Egress()
		then, later := p.LaterEgress()
		if linked != (tc.first != "") || later != linked || linked && (first.Network() != tc.first || then.Network() != tc.then) {
			t.Errorf("%s: %v %s, then %s", name, linked, first.Network(), then.Network())
		}
		if linked && then.Closed && len(then.Rules) != 0 {
			t.Errorf("%s: closed, with %v", name, then.Rules)
		}
	}
}

// TestReplacedEgress: what the operator put on a sandbox stays, whatever is put in the
// place of the rest, and limits count from then on.
func TestReplacedEgress(t *testing.T) {
	set := mustParse(t, "egress: {allow: ['*.a.org', b.org]}")
	now, red := time.Unix(100, 0), policy.Caller{Tenant: "red", UID: -1}
	in := policy.Settings{Tenant: "red", Profile: "default"}
	p, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Egress: &api.Egress{Allow: []string{"x.a.org"}}}, Facts: facts()}, red, set)
	if err != nil {
		t.Fatal(err)
	}
	g, _ := p.Egress()
	operator := policy.Caller{Tenant: policy.LocalTenant, Operator: true}
	if g, err = policy.DecideEgressChange(api.EgressChange{Deny: []string{"held.a.org"}}, g, in, operator, set, now); err != nil {
		t.Fatal(err)
	}
	used := api.EgressLimits{Connections: 7, BytesIn: 100}
	want := api.EgressPolicy{Egress: &api.Egress{Allow: []string{"*.a.org"}, Limits: api.EgressLimits{Connections: 2}}}
	for range 2 { // closed between the two
		if g, err = policy.DecideEgressPolicy(want, g, used, in, red, set, now); err != nil {
			t.Fatal(err)
		}
		if len(g.Locked) != 1 || len(g.Rules) != 2 || g.Budget().Connections != 9 || g.Budget().BytesIn != 0 || g.Closed {
			t.Errorf("%+v, budget %+v", g, g.Budget())
		}
		if g, err = policy.DecideEgressPolicy(api.EgressPolicy{Network: "none"}, g, used, in, red, set, now); err != nil || !g.Closed || len(g.Locked) != 1 {
			t.Fatalf("%+v, %v", g, err)
		}
	}
	for _, bad := range []api.EgressPolicy{
		{Egress: &api.Egress{Allow: []string{"c.org"}}},
		{Network: "x"},
		{Egress: &api.Egress{Allow: []string{"b.org"}, Requests: []api.RequestRule{{Host: "b.org", Methods: []string{"GET"}}}}},
	} {
		_, err := policy.DecideEgressPolicy(bad, g, used, in, red, set, now)
		if _, ok := errors.AsType[*api.Error](err); !ok {
			t.Errorf("%+v is granted: %v", bad, err)
		}
	}
}

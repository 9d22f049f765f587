package policy_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestEndpointAuto: an endpoint may leave its port to the fixture, several may, and only
// by that one word.
func TestEndpointAuto(t *testing.T) {
	operator := policy.InProcessCaller(0)
	auto := endpoint("http://127.0.0.1:8080")
	auto.Listen = api.EndpointListenAuto
	g, e := decideEndpoint(auto, operator, rules.Rules{})
	if e != nil || !g.Auto || g.Spec.Listen != api.EndpointListenAuto {
		t.Fatalf("%+v, %v", g, e)
	}
	if fixed, e := decideEndpoint(endpoint("client"), operator, rules.Rules{}); e != nil || fixed.Auto {
		t.Errorf("one with the usual port: %+v, %v", fixed, e)
	}
	other := auto
	other.Name = "other"
	if _, err := policy.DecideEndpoint(other, []api.Endpoint{auto}, policy.Settings{Ref: "box", Tenant: operator.Tenant, Profile: api.DefaultProfile}, operator, rules.Rules{}, true); err != nil {
		t.Errorf("a second: %v", err)
	}
	for _, listen := range []string{"auto", "loopback:AUTO", "loopback:8080", "0.0.0.0:auto", "loopback:"} {
		auto.Listen = listen
		if _, e := decideEndpoint(auto, operator, rules.Rules{}); e == nil || e.Code != api.CodeInvalid {
			t.Errorf("%q: %v", listen, e)
		}
	}
}

// TestExplainEndpoint: what policy says of an endpoint for a sandbox that is there is
// what it decides, and names the rule.
func TestExplainEndpoint(t *testing.T) {
	set := "endpoints:\n- target: http://127.0.0.1:8080/v1\n  tenants: [red]\n"
	for _, c := range []struct {
		tenant, target string
		refused        api.Code
	}{
		{tenant: "red", target: "http://127.0.0.1:8080/v1/models"},
		{tenant: "red", target: "http://127.0.0.1:8081/v1", refused: api.CodeDenied},
		{tenant: "blue", target: "http://127.0.0.1:8080/v1", refused: api.CodeDenied},
		{tenant: "red", target: "nonsense", refused: api.CodeInvalid},
	} {
		e := endpoint(c.target)
		a, err := policy.ExplainRules([]byte(set), api.PolicyQuestion{Verb: "add_endpoint", Tenant: c.tenant, Endpoint: &e})
		if err != nil {
			t.Fatal(err)
		}
		if c.refused == "" {
			if !a.Allowed || len(a.Grants) != 1 || a.Grants[0].Rule != "endpoints[0]" {
				t.Errorf("%s %s: %+v", c.tenant, c.target, a)
			}
			continue
		}
		if a.Allowed || a.Refusal == nil || a.Refusal.Code != c.refused || c.refused == api.CodeDenied && !strings.Contains(a.Refusal.Hint, "endpoints:") {
			t.Errorf("%s %s: %+v", c.tenant, c.target, a.Refusal)
		}
	}
	if _, err := policy.QuestionOf(api.PolicyQuestion{Verb: "exec", Endpoint: &api.Endpoint{}}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("an endpoint beside a program: %v", err)
	}
}

package policy_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func endpoint(target string) api.Endpoint {
	return api.Endpoint{Name: "model", Target: target}
}

func decideEndpoint(e api.Endpoint, caller policy.Caller, set rules.Rules) (policy.EndpointGrant, *api.Error) {
	in := policy.Settings{Ref: "box", Tenant: caller.Tenant, Profile: api.DefaultProfile}
	p, err := policy.DecideEndpoint(e, nil, in, caller, set, true)
	if err != nil {
		ce, _ := errors.AsType[*api.Error](err)
		return policy.EndpointGrant{}, ce
	}
	return p.Grant(), nil
}

// TestEndpointTargets: a tenant gets what a rule holds and nothing beside it.
func TestEndpointTargets(t *testing.T) {
	set, err := rules.ParseRules([]byte(`endpoints:
- target: http://127.0.0.1:8080/rollout
- target: https://api.example.com
  tenants: [red]
- target: http://model.lan:80/
  at: [10.1.0.0/16, "fd00::/8"]
- target: tcp://127.0.0.1:5432
- target: client
`))
	if err != nil {
		t.Fatal(err)
	}
	red, blue := policy.Caller{Tenant: "red", UID: -1}, policy.Caller{Tenant: "blue", UID: -1}
	operator := policy.InProcessCaller(0)
	for _, c := range []struct {
		caller         policy.Caller
		target, as     string
		rule, ranges   string
		code           api.Code
		operatorRanges string
	}{
		{caller: blue, target: "http://127.0.0.1:8080/rollout/k1", rule: "endpoints[0]", ranges: "[127.0.0.1/32]"},
		{caller: blue, target: "http://127.0.0.1:8080/rollout/", as: "http://127.0.0.1:8080/rollout", rule: "endpoints[0]", ranges: "[127.0.0.1/32]"},
		{caller: blue, target: "http://127.0.0.1:8080/rollouts", code: api.CodeDenied},
		{caller: blue, target: "http://127.0.0.1:8080", code: api.CodeDenied},
		{caller: blue, target: "http://127.0.0.1:8081/rollout", code: api.CodeDenied},
		{caller: blue, target: "https://127.0.0.1:8080/rollout", code: api.CodeDenied},
		{caller: blue, target: "http://localhost:8080/rollout", code: api.CodeDenied},
		{caller: red, target: "https://API.example.com:443/v1", as: "https://api.example.com/v1", rule: "endpoints[1]", ranges: "null"},
		{caller: blue, target: "https://api.example.com", code: api.CodeDenied},
		{caller: blue, target: "http://model.lan", rule: "endpoints[2]", ranges: "[10.1.0.0/16 fd00::/8]"},
		{caller: blue, target: "tcp://127.0.0.1:5432", rule: "endpoints[3]", ranges: "[127.0.0.1/32]"},
		{caller: blue, target: "tcp://127.0.0.1:8080", code: api.CodeDenied},
		{caller: blue, target: "client", rule: "endpoints[4]", ranges: "null"},
		{caller: blue, target: "client+tcp", code: api.CodeDenied},
		{caller: operator, target: "tcp://127.0.0.1:8080", rule: "operator", ranges: "[127.0.0.1/32]"},
		{caller: operator, target: "http://model.lan", rule: "endpoints[2]", ranges: "[10.1.0.0/16 fd00::/8]"},
		{caller: operator, target: "http://localhost:1", rule: "operator", ranges: "[127.0.0.0/8 ::1/128]"},
		{caller: operator, target: "https://api.openai.com", rule: "operator", ranges: "[10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7]"},
		// What is never allowed as a target.
		{caller: operator, target: "http://169.254.169.254/latest", code: api.CodeInvalid},
		{caller: operator, target: "http://[fe80::1]/", code: api.CodeInvalid},
		{caller: operator, target: "http://[::ffff:127.0.0.1]/", code: api.CodeInvalid},
		{caller: operator, target: "http://0.0.0.0:80/", code: api.CodeInvalid},
		{caller: operator, target: "http://user:pass@example.com/", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com/?x=y", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com/#x", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com/a/../b", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com/%2e%2e/b", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com//b", code: api.CodeInvalid},
		{caller: operator, target: `http://example.com\@evil`, code: api.CodeInvalid},
		{caller: operator, target: "http://example.com:0/", code: api.CodeInvalid},
		{caller: operator, target: "http://example.com:99999/", code: api.CodeInvalid},
		{caller: operator, target: "tcp://example.com", code: api.CodeInvalid},
		{caller: operator, target: "tcp://example.com:1/x", code: api.CodeInvalid},
		{caller: operator, target: "unix://run/x.sock", code: api.CodeInvalid},
		{caller: operator, target: "file:///etc/passwd", code: api.CodeInvalid},
		{caller: operator, target: "example.com:80", code: api.CodeInvalid},
		{caller: operator, target: "", code: api.CodeInvalid},
	} {
		g, e := decideEndpoint(endpoint(c.target), c.caller, set)
		if c.code != "" {
			if e == nil || e.Code != c.code || e.Field != "target" || c.code == api.CodeDenied && (e.Rule != "endpoints" || !strings.Contains(e.Hint, c.caller.Tenant)) {
				t.Errorf("%s %q: %+v", c.caller.Tenant, c.target, e)
			}
			continue
		}
		if c.as == "" {
			c.as = c.target
		}
		ranges := "null"
		if len(g.Ranges) > 0 {
			var text []string
			for _, r := range g.Ranges {
				text = append(text, r.String())
			}
			ranges = "[" + strings.Join(text, " ") + "]"
		}
		if e != nil || g.Rule != c.rule || ranges != c.ranges || g.Spec.Target != c.as {
			t.Errorf("%s %q: %+v %s %s, %v", c.caller.Tenant, c.target, g.Spec.Target, g.Rule, ranges, e)
		}
	}
}

// TestEndpointShape: what an endpoint says is checked, and has one form, which is
// granted as it is.
func TestEndpointShape(t *testing.T) {
	operator := policy.InProcessCaller(0)
	good := api.Endpoint{
		Name: "model", Target: "http://127.0.0.1:8080", Listen: "localhost:13131", Presets: []string{"openai"}, Env: map[string]string{"A": "{base}"},
		HTTP: &api.EndpointHTTP{
			Methods: []string{"get", "POST"}, Paths: []string{"/v1/*", "/health"}, SetHeaders: map[string]string{"X-A": "b"},
			SecretHeaders: map[string]string{"Authorization": "key"}, PassHeaders: []string{"Cookie"},
		},
	}
	set := rules.Rules{Secrets: []rules.SecretRule{{Name: "key", Hosts: []string{"example.com"}}}}
	g, e := decideEndpoint(good, operator, set)
	if e != nil || g.Spec.Listen != "127.0.0.1:13131" || !reflect.DeepEqual(g.Spec.Phases, []string{"post_setup", "run"}) || g.Spec.HTTP.Methods[0] != "GET" {
		t.Fatalf("%+v, %v", g, e)
	}
	if again, e := decideEndpoint(g.Spec, operator, set); e != nil || !reflect.DeepEqual(again, g) {
		t.Errorf("again: %+v, %v", again, e)
	}
	if good.HTTP.Methods[0] != "get" {
		t.Error("the request was changed")
	}
	for field, spoil := range map[string]func(*api.Endpoint){
		"name":                       func(e *api.Endpoint) { e.Name = "Model" },
		"listen":                     func(e *api.Endpoint) { e.Listen = "0.0.0.0:80" },
		"listen ":                    func(e *api.Endpoint) { e.Listen = "127.0.0.1:0" },
		"listen  ":                   func(e *api.Endpoint) { e.Listen = "127.0.0.1:1" },
		"listen   ":                  func(e *api.Endpoint) { e.Listen = "127.0.0.1:+80" },
		"phases[0]":                  func(e *api.Endpoint) { e.Phases = []string{"score"} },
		"phases[1]":                  func(e *api.Endpoint) { e.Phases = []string{"run", "run"} },
		"presets[0]":                 func(e *api.Endpoint) { e.Presets = []string{"none"} },
		"env.A=B":                    func(e *api.Endpoint) { e.Env = map[string]string{"A=B": ""} },
		"http":                       func(e *api.Endpoint) { e.Target = "tcp://127.0.0.1:1" },
		"http.methods[0]":            func(e *api.Endpoint) { e.HTTP.Methods = []string{"CONNECT"} },
		"http.paths[0]":              func(e *api.Endpoint) { e.HTTP.Paths = []string{"v1"} },
		"http.paths[0] ":             func(e *api.Endpoint) { e.HTTP.Paths = []string{"/a*"} },
		"http.paths[0]  ":            func(e *api.Endpoint) { e.HTTP.Paths = []string{"/../a"} },
		"http.set_headers":           func(e *api.Endpoint) { e.HTTP.SetHeaders = map[string]string{"X-A": "b\r\nHost: evil"} },
		"http.set_headers ":          func(e *api.Endpoint) { e.HTTP.SetHeaders = map[string]string{"Host": "evil"} },
		"http.set_headers  ":         func(e *api.Endpoint) { e.HTTP.SetHeaders = map[string]string{"x-api-key": "value"} },
		"http.set_headers   ":        func(e *api.Endpoint) { e.HTTP.SetHeaders = map[string]string{"X-Sandbox-Id": "sb-2"} },
		"http.set_headers    ":       func(e *api.Endpoint) { e.HTTP.SetHeaders = map[string]string{"X_Sandbox_Id": "sb-2"} },
		"http.secret_headers":        func(e *api.Endpoint) { e.HTTP.SecretHeaders = map[string]string{"X-B": ""} },
		"http.secret_headers ":       func(e *api.Endpoint) { e.HTTP.SecretHeaders = map[string]string{"x-a": "key"} },
		"http.pass_headers[1]":       func(e *api.Endpoint) { e.HTTP.PassHeaders = []string{"X-Mine", "X_Mine"} },
		"http.pass_headers[0]":       func(e *api.Endpoint) { e.HTTP.PassHeaders = []string{"Connection"} },
		"limits.connections":         func(e *api.Endpoint) { e.Limits.Connections = -1 },
		"limits.active":              func(e *api.Endpoint) { e.Limits.Active = 1 << 20 },
		"limits.request_bytes":       func(e *api.Endpoint) { e.Limits.RequestBytes = -1 },
		"limits.response_bytes":      func(e *api.Endpoint) { e.Limits.ResponseBytes = 1 << 50 },
		"limits.requests_per_second": func(e *api.Endpoint) { e.Limits.RequestsPerSecond = math.NaN() },
		"limits.bytes_per_second":    func(e *api.Endpoint) { e.Limits.BytesPerSecond = -5 },
		"limits.idle_ms":             func(e *api.Endpoint) { e.Limits.IdleMS = 1 << 40 },
	} {
		var bad api.Endpoint
		data, err := json.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &bad); err != nil {
			t.Fatal(err)
		}
		spoil(&bad)
		_, e := decideEndpoint(bad, operator, set)
		if field = strings.TrimSpace(field); e == nil || e.Code != api.CodeInvalid || e.Hint == "" || !strings.HasPrefix(e.Field, strings.SplitN(field, "=", 2)[0]) {
			t.Errorf("%s: %+v", field, e)
		}
	}
	in := policy.Settings{Tenant: operator.Tenant, Profile: api.DefaultProfile}
	if _, err := policy.DecideEndpoint(good, nil, in, operator, set, false); api.CodeOf(err) != api.CodeUnsupported {
		t.Errorf("secrets that nobody has: %v", err)
	}
	if _, err := policy.DecideEndpoint(good, []api.Endpoint{g.Spec}, in, operator, set, true); !errors.Is(err, api.ErrExists) {
		t.Errorf("a name twice: %v", err)
	}
	second := good
	second.Name = "second"
	if _, err := policy.DecideEndpoint(second, []api.Endpoint{g.Spec}, in, operator, set, true); !errors.Is(err, api.ErrExists) {
		t.Errorf("a port twice: %v", err)
	}
	other := policy.Caller{Tenant: "other", UID: -1}
	if _, err := policy.DecideEndpoint(good, nil, policy.Settings{Ref: "box", Tenant: "tcp"}, other, rules.Rules{}, true); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another's sandbox: %v", err)
	}
}

// TestEndpointSecrets: a secret goes where its rule says, for whom it says.
func TestEndpointSecrets(t *testing.T) {
	set, err := rules.ParseRules([]byte(`endpoints: [{target: "https://api.example.com"}, {target: "https://evil.example"}, {target: "http://127.0.0.1:8080"}, {target: client}]
secrets: [{name: key, from: {env: X}, hosts: [api.example.com], tenants: [red], headers: [Authorization]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	red, blue, operator := policy.Caller{Tenant: "red", UID: -1}, policy.Caller{Tenant: "blue", UID: -1}, policy.InProcessCaller(0)
	for _, c := range []struct {
		caller               policy.Caller
		target, header, rule string
	}{
		{red, "https://api.example.com/v1", "Authorization", ""},
		{red, "https://api.example.com", "X-Other", `secrets["key"].headers`},
		{red, "https://evil.example", "Authorization", `secrets["key"].hosts`},
		{red, "http://127.0.0.1:8080", "Authorization", `secrets["key"].hosts`},
		{red, "client", "Authorization", `secrets["key"].hosts`},
		{blue, "https://api.example.com", "Authorization", "secrets"},
		{operator, "http://127.0.0.1:8080", "Authorization", ""},
		{operator, "https://evil.example", "Authorization", `secrets["key"].hosts`},
		{operator, "client", "Authorization", `secrets["key"].hosts`},
	} {
		e := endpoint(c.target)
		e.HTTP = &api.EndpointHTTP{SecretHeaders: map[string]string{c.header: "key"}}
		_, got := decideEndpoint(e, c.caller, set)
		if c.rule == "" && got != nil || c.rule != "" && (got == nil || got.Rule != c.rule || got.Code != api.CodeDenied) {
			t.Errorf("%s %s %s: %+v, want %q", c.caller.Tenant, c.target, c.header, got, c.rule)
		}
	}
}

// TestEndpointRules: what a policy file says of endpoints is checked when it is read.
func TestEndpointRules(t *testing.T) {
	for file, field := range map[string]string{
		"endpoints: [{target: ftp://x}]":                                      "endpoints[0].target",
		"endpoints: [{target: 'http://169.254.169.254'}]":                     "endpoints[0].target",
		"endpoints: [{target: 'http://x.lan', at: [10.0.0.1]}]":               "endpoints[0].at[0]",
		"endpoints: [{target: 'http://x.lan', tenants: ['']}]":                "endpoints[0].tenants[0]",
		"endpoints: [{target: 'http://x.lan', hosts: [a]}]":                   "endpoints[0].hosts",
		"endpoints: [{target: client}, {target: client, at: ['nonsense/8']}]": "endpoints[1].at[0]",
	} {
		_, err := rules.ParseRules([]byte(file))
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Field != field || e.Hint == "" {
			t.Errorf("%s: %+v", file, err)
		}
	}
}

// TestBodyFilters: a preset strips, what is said goes before, and a rule's filter is the
// weakest that those it grants have.
func TestBodyFilters(t *testing.T) {
	set, err := rules.ParseRules([]byte(`endpoints:
- {target: http://127.0.0.1:1/free}
- {target: http://127.0.0.1:1/strict, body_filter: refuse}
- {target: http://127.0.0.1:1/both, body_filter: refuse}
- {target: http://127.0.0.1:1/both, body_filter: strip}
`))
	if err != nil {
		t.Fatal(err)
	}
	tenant, operator := policy.Caller{Tenant: "red", UID: -1}, policy.InProcessCaller(0)
	for _, c := range []struct {
		caller           policy.Caller
		base, preset     string
		asked, want, why string
	}{
		{tenant, "free", "", "", "", ""},
		{tenant, "free", "openai", "", "strip", ""},
		{tenant, "free", "anthropic", "off", "off", ""},
		{tenant, "free", "", "refuse", "refuse", ""},
		{tenant, "free", "", "weak", "", "http.body_filter"},
		{tenant, "strict", "", "", "refuse", ""},
		{tenant, "strict", "openai", "", "refuse", ""},
		{tenant, "strict", "openai", "off", "", "http.body_filter"},
		{tenant, "both", "", "", "strip", ""},
		{operator, "strict", "", "off", "off", ""},
	} {
		e := endpoint("http://127.0.0.1:1/" + c.base)
		if c.preset != "" {
			e.Presets = []string{c.preset}
		}
		if c.asked != "" {
			e.HTTP = &api.EndpointHTTP{BodyFilter: c.asked}
		}
		g, refusal := decideEndpoint(e, c.caller, set)
		got := ""
		if g.Spec.HTTP != nil {
			got = g.Spec.HTTP.BodyFilter
		}
		if c.why != "" {
			if refusal == nil || refusal.Field != c.why {
				t.Errorf("%+v: %+v", c, refusal)
			}
			continue
		}
		if refusal != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c, got, refusal)
		}
	}
	if _, err := rules.ParseRules([]byte("endpoints: [{target: client, body_filter: none}]")); err == nil {
		t.Error("a rule with a filter that is none is taken")
	}
}

// TestRecordings: who may record and replay is said by rules, and what cannot be
// recorded or replayed is refused by name.
func TestRecordings(t *testing.T) {
	set, err := rules.ParseRules([]byte(`endpoints:
- {target: http://127.0.0.1:1, record: true, tenants: [red]}
- {target: http://127.0.0.1:1}
- {target: "replay:shared"}
- {target: replay, tenants: [red]}
`))
	if err != nil {
		t.Fatal(err)
	}
	red, blue, operator := policy.Caller{Tenant: "red", UID: -1}, policy.Caller{Tenant: "blue", UID: -1}, policy.InProcessCaller(0)
	const model = "http://127.0.0.1:1"
	for _, c := range []struct {
		caller         policy.Caller
		target, record string
		replay         *api.EndpointReplay
		field          string
		code           api.Code
	}{
		{red, model, "run", nil, "", ""},
		{blue, model, "run", nil, "record", api.CodeDenied},
		{blue, model, "", nil, "", ""},
		{operator, model, "run", nil, "", ""},
		{red, "replay:run", "", nil, "", ""},
		{blue, "replay:run", "", nil, "target", api.CodeDenied},
		{blue, "replay:shared", "", &api.EndpointReplay{Match: "order", Pace: true}, "", ""},
		{operator, "replay:run", "", nil, "", ""},
		{operator, "replay", "", nil, "target", api.CodeInvalid},
		{operator, "replay:", "", nil, "target", api.CodeInvalid},
		{operator, "replay:../run", "", nil, "target", api.CodeInvalid},
		{operator, "replay:run", "other", nil, "record", api.CodeInvalid},
		{operator, "tcp://127.0.0.1:1", "run", nil, "record", api.CodeInvalid},
		{operator, model, "a/b", nil, "record", api.CodeInvalid},
		{operator, model, "", &api.EndpointReplay{}, "replay", api.CodeInvalid},
		{operator, "replay:run", "", &api.EndpointReplay{Match: "luck"}, "replay.match", api.CodeInvalid},
	} {
		e := endpoint(c.target)
		e.Record, e.Replay = c.record, c.replay
		_, refusal := decideEndpoint(e, c.caller, set)
		if c.code == "" && refusal != nil || c.code != "" && (refusal == nil || refusal.Code != c.code || refusal.Field != c.field) {
			t.Errorf("%s %s %q: %+v", c.caller.Tenant, c.target, c.record, refusal)
		}
	}
}

package policy_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestEndpointSockets: a rule for a socket is for that one alone, and for HTTP or for
// bytes as it says.
func TestEndpointSockets(t *testing.T) {
	set, err := rules.ParseRules([]byte("endpoints:\n- target: unix:///run/model.sock\n- target: unix+tcp:///run/db\n"))
	if err != nil {
		t.Fatal(err)
	}
	tenant, operator := policy.Caller{Tenant: "red", UID: -1}, policy.InProcessCaller(0)
	for target, want := range map[string]api.Code{
		"unix:///run/model.sock": "", "unix+tcp:///run/db": "", "unix:///run/db": api.CodeDenied, "unix+tcp:///run/model.sock": api.CodeDenied,
		"unix:///run/db/x": api.CodeDenied, "unix+tcp:///run/db/x": api.CodeDenied, "unix:///run": api.CodeDenied, "unix:///run/docker.sock": api.CodeDenied,
		"unix://run/model.sock": api.CodeInvalid, "unix:///run/../run/model.sock": api.CodeInvalid, "unix:///run//model.sock": api.CodeInvalid,
		"unix:///run/model.sock/": api.CodeInvalid, "unix:///": api.CodeInvalid, "unix://": api.CodeInvalid, "unix:///run/a\x00b": api.CodeInvalid,
		"unix:///" + strings.Repeat("x", 107): api.CodeInvalid, "unix+http:///run/model.sock": api.CodeInvalid,
	} {
		if _, e := decideEndpoint(endpoint(target), tenant, set); e == nil && want != "" || e != nil && e.Code != want {
			t.Errorf("%q: %v, want %q", target, e, want)
		}
		if _, e := decideEndpoint(endpoint(target), operator, set); e != nil && want != api.CodeInvalid || e == nil && want == api.CodeInvalid {
			t.Errorf("the operator, %q: %v", target, e)
		}
	}
	g, e := decideEndpoint(endpoint("unix+tcp:///run/db"), tenant, set)
	if e != nil || !g.Spec.Raw() || g.Rule != "endpoints[1]" || len(g.Ranges) != 0 {
		t.Errorf("%+v, %v", g, e)
	}
}

// TestEndpointInsideSocket: a socket inside has one form, is where no other sandbox sees it,
// and has no variables of a port.
func TestEndpointInsideSocket(t *testing.T) {
	operator := policy.InProcessCaller(0)
	for listen, want := range map[string]string{
		"unix:/run/m.sock": "unix:///run/m.sock", "unix:///run/m.sock": "unix:///run/m.sock", "unix:///tmp/a/b": "unix:///tmp/a/b",
		"unix:run/m.sock": "", "unix://": "", "unix:///": "", "unix:///run/../m": "", "unix:///run//m": "", "unix:///proc/m": "", "unix:///sys/m": "",
		"unix:///dev/m": "", "unix:///run/a b": "", "unix:///run/a\n": "", "unix:///" + strings.Repeat("x", 107): "", "unix:///run/m/": "",
	} {
		e := endpoint("client")
		e.Listen = listen
		g, err := decideEndpoint(e, operator, rules.Rules{})
		if want == "" && (err == nil || err.Code != api.CodeInvalid || err.Field != "listen") || want != "" && (err != nil || g.Spec.Listen != want) {
			t.Errorf("%q: %q, %v", listen, g.Spec.Listen, err)
		}
	}
	for _, c := range []struct {
		field string
		set   func(*api.Endpoint)
	}{
		{"presets[0]", func(e *api.Endpoint) { e.Presets = []string{"openai"} }},
		{"env", func(e *api.Endpoint) { e.Env = map[string]string{"URL": "{base}/v1"} }},
		{"listen_user", func(e *api.Endpoint) { e.ListenUser = "a b" }},
		{"listen_user", func(e *api.Endpoint) { e.Listen, e.ListenUser = "127.0.0.1:7000", "nobody" }},
	} {
		e := endpoint("client")
		e.Listen = "unix:///run/m.sock"
		c.set(&e)
		if _, err := decideEndpoint(e, operator, rules.Rules{}); err == nil || err.Code != api.CodeInvalid || err.Field != c.field {
			t.Errorf("%+v: %v", e, err)
		}
	}
	e := endpoint("client")
	e.Listen, e.Env = "unix:///run/m.sock", map[string]string{"SOCK": "unix:{path}"}
	if got := e.Exports(api.PhaseRun); got["SOCK"] != "unix:/run/m.sock" {
		t.Error(got)
	}
}

// TestEndpointAudit: what goes on record of requests is no more than the rule of their
// target says, and is bounded.
func TestEndpointAudit(t *testing.T) {
	set, err := rules.ParseRules([]byte("endpoints:\n- {target: http://a.example}\n- {target: http://b.example, audit: headers}\n- {target: http://c.example, audit: body}\n"))
	if err != nil {
		t.Fatal(err)
	}
	tenant, operator := policy.Caller{Tenant: "red", UID: -1}, policy.InProcessCaller(0)
	for _, c := range []struct {
		caller policy.Caller
		target string
		audit  api.EndpointAudit
		want   api.Code
	}{
		{tenant, "http://a.example", api.EndpointAudit{Capture: "headers"}, api.CodeDenied},
		{tenant, "http://b.example", api.EndpointAudit{Capture: "headers"}, ""},
		{tenant, "http://b.example", api.EndpointAudit{Capture: "body"}, api.CodeDenied},
		{tenant, "http://c.example", api.EndpointAudit{Capture: "headers"}, ""},
		{tenant, "http://c.example", api.EndpointAudit{Capture: "body", MaxBytes: 8192}, ""},
		{operator, "http://a.example", api.EndpointAudit{Capture: "body"}, ""},
		{operator, "http://a.example", api.EndpointAudit{Capture: "body", MaxBytes: 8193}, api.CodeInvalid},
		{operator, "http://a.example", api.EndpointAudit{Capture: "body", MaxBytes: -1}, api.CodeInvalid},
		{operator, "http://a.example", api.EndpointAudit{Capture: "headers", MaxBytes: 1}, api.CodeInvalid},
		{operator, "http://a.example", api.EndpointAudit{Capture: "off"}, api.CodeInvalid},
		{operator, "http://a.example", api.EndpointAudit{}, api.CodeInvalid},
		{operator, "http://a.example", api.EndpointAudit{Capture: "headers", RedactHeaders: []string{"a b"}}, api.CodeInvalid},
		{operator, "tcp://a.example:1", api.EndpointAudit{Capture: "headers"}, api.CodeInvalid},
	} {
		e := endpoint(c.target)
		e.Audit = &c.audit
		g, refusal := decideEndpoint(e, c.caller, set)
		if refusal == nil && c.want != "" || refusal != nil && refusal.Code != c.want {
			t.Errorf("%s %+v: %v, want %q", c.target, c.audit, refusal, c.want)
		}
		if refusal == nil && c.audit.Capture == api.CaptureBody && g.Spec.Audit.MaxBytes < 2048 {
			t.Errorf("%+v", g.Spec.Audit)
		}
	}
	if _, err := rules.ParseRules([]byte("endpoints:\n- {target: http://a.example, audit: all}\n")); err == nil {
		t.Error("a rule with another word is taken")
	}
}

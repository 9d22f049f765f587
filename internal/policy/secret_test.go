package policy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const secretRules = `
secrets:
  - {name: model, from: {file: /etc/keys/model}, hosts: [API.example.com, "*.example.org:8443"], tenants: [tcp], headers: [Authorization], query: true}
  - {name: plain, from: {env: PLAIN}, mode: env, profiles: [other]}
  - {name: both, from: {exec: [/usr/bin/pass, both]}, hosts: [example.net], mode: either}
  - {name: mine, from: {env: MINE}, hosts: [example.net], tenants: [nobody]}
`

// linked are facts of a machine on which a sandbox can have a network.
func linked() policy.Facts {
	f := facts()
	f.Engines[0].Enforces["egress"] = api.Enforcement{OK: true}
	return f
}

func decideSecrets(c policy.Caller, r rules.Rules, network string, uses ...api.SecretUse) (policy.Permit, error) {
	spec := api.SandboxSpec{Network: network, Secrets: uses, Env: map[string]string{"TAKEN": "x"}}
	return policy.Decide(policy.Request{Spec: spec, Facts: linked()}, c, r)
}

func TestSecretsThatAreGranted(t *testing.T) {
	r := mustParse(t, secretRules)
	p, err := decideSecrets(tenant, r, "on", api.SecretUse{Name: "model", Env: "KEY"}, api.SecretUse{Name: "both"}, api.SecretUse{Name: "both", Env: "AGAIN", Mode: api.SecretEnv})
	if err != nil {
		t.Fatal(err)
	}
	got := p.Secrets()
	if len(got) != 3 || got[0].Env != "KEY" || got[0].Mode != api.SecretPlaceholder || !slices.Equal(got[0].Hosts, []string{"api.example.com", "*.example.org:8443"}) ||
		!got[0].Query || got[1].Env != "BOTH" || got[1].Mode != api.SecretPlaceholder || got[2].Mode != api.SecretEnv {
		t.Errorf("granted %+v", got)
	}
	again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: linked()}, tenant, r)
	if err != nil || !slices.Equal(again.Spec().Secrets, p.Spec().Secrets) {
		t.Errorf("what was granted is not granted again: %v, %v", again.Spec().Secrets, err)
	}
}

func TestSecretsThatAreRefused(t *testing.T) {
	r := mustParse(t, secretRules)
	for name, v := range map[string]struct {
		network string
		use     api.SecretUse
		want    want
	}{
		"no such":        {"on", api.SecretUse{Name: "none"}, want{api.CodeDenied, "secrets[0].name", "secrets", "there is no secret"}},
		"of a tenant":    {"on", api.SecretUse{Name: "mine"}, want{api.CodeDenied, "secrets[0].name", "secrets", "there is no secret"}},
		"profile":        {"on", api.SecretUse{Name: "plain"}, want{api.CodeDenied, "secrets[0].name", `secrets["plain"].profiles`, "other"}},
		"bad name":       {"on", api.SecretUse{Name: "../x"}, want{api.CodeInvalid, "secrets[0].name", "", "not valid"}},
		"mode":           {"on", api.SecretUse{Name: "model", Mode: "env"}, want{api.CodeDenied, "secrets[0].mode", "", "either"}},
		"no such mode":   {"on", api.SecretUse{Name: "model", Mode: "file"}, want{api.CodeInvalid, "secrets[0].mode", "", "placeholder"}},
		"bad variable":   {"on", api.SecretUse{Name: "model", Env: "1=2"}, want{api.CodeInvalid, "secrets[0].env", "", "variable"}},
		"variable taken": {"on", api.SecretUse{Name: "model", Env: "TAKEN"}, want{api.CodeInvalid, "secrets[0].env", "", "env.TAKEN"}},
		"no network":     {"none", api.SecretUse{Name: "model"}, want{api.CodeDenied, "secrets[0]", "", "no network"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decideSecrets(tenant, r, v.network, v.use)
			v.want.check(t, err)
		})
	}
	_, foreign := decideSecrets(tenant, r, "on", api.SecretUse{Name: "mine"})
	_, none := decideSecrets(tenant, r, "on", api.SecretUse{Name: "none"})
	f, _ := errors.AsType[*api.Error](foreign)
	n, _ := errors.AsType[*api.Error](none)
	if f == nil || n == nil || strings.ReplaceAll(f.Message+f.Hint, "mine", "none") != n.Message+n.Hint || f.Rule != n.Rule {
		t.Errorf("a foreign secret shows:\n%v\n%v", foreign, none)
	}
	if _, err := decideSecrets(operator, r, "on", api.SecretUse{Name: "mine"}); err != nil {
		t.Errorf("the operator may use all: %v", err)
	}
}

// TestNoInterceptionNoPlaceholder: what cannot be kept is refused, and a value that
// needs nothing is not.
func TestNoInterceptionNoPlaceholder(t *testing.T) {
	r := mustParse(t, secretRules)
	f := linked()
	f.NoInterception = api.Errorf(api.CodeUnsupported, "no TLS is opened here").WithHint("x")
	for mode, code := range map[api.SecretMode]api.Code{api.SecretPlaceholder: api.CodeUnsupported, api.SecretEnv: ""} {
		spec := api.SandboxSpec{Network: "on", Secrets: []api.SecretUse{{Name: "both", Mode: mode}}}
		if _, err := policy.Decide(policy.Request{Spec: spec, Facts: f}, tenant, r); api.CodeOf(err) != code {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestSecretsOf(t *testing.T) {
	r := mustParse(t, secretRules)
	names := func(c policy.Caller) (out []string) {
		for _, s := range policy.SecretsOf(c, r) {
			if (s.From != "") != c.Operator {
				t.Errorf("%s: from %q", s.Name, s.From)
			}
			out = append(out, s.Name)
		}
		return out
	}
	if got := names(tenant); !slices.Equal(got, []string{"both", "model", "plain"}) {
		t.Errorf("a tenant sees %v", got)
	}
	if got := names(operator); !slices.Equal(got, []string{"both", "mine", "model", "plain"}) {
		t.Errorf("the operator sees %v", got)
	}
}

// TestOwnTrustIsReported: a variable of the caller's own wins, and that is said.
func TestOwnTrustIsReported(t *testing.T) {
	r := mustParse(t, secretRules)
	spec := api.SandboxSpec{Network: "on", Env: map[string]string{"CURL_CA_BUNDLE": "/x"}, Secrets: []api.SecretUse{{Name: "both"}}}
	for mode, want := range map[api.SecretMode]int{api.SecretPlaceholder: 1, api.SecretEnv: 0} {
		spec.Secrets[0].Mode = mode
		p, err := policy.Decide(policy.Request{Spec: spec, Facts: linked()}, operator, r)
		if err != nil {
			t.Fatal(err)
		}
		var said int
		for _, u := range p.Unenforced() {
			if u.Field == "env.CURL_CA_BUNDLE" {
				said++
			}
		}
		if said != want {
			t.Errorf("%s: reported %d times", mode, said)
		}
	}
}

func TestRulesOfSecretsThatAreWrong(t *testing.T) {
	for text, field := range map[string]string{
		"{name: x, from: {env: A}}":                                                  "secrets[0].hosts",
		"{name: X, from: {env: A}, hosts: [a.org]}":                                  "secrets[0].name",
		"{name: x, from: {}, hosts: [a.org]}":                                        "secrets[0].from",
		"{name: x, from: {env: A, file: /x}, hosts: [a.org]}":                        "secrets[0].from",
		"{name: x, from: {env: 1A}, hosts: [a.org]}":                                 "secrets[0].from.env",
		"{name: x, from: {file: x}, hosts: [a.org]}":                                 "secrets[0].from.file",
		"{name: x, from: {exec: [pass]}, hosts: [a.org]}":                            "secrets[0].from.exec",
		"{name: x, from: {env: A}, hosts: ['*']}":                                    "secrets[0].hosts[0]",
		"{name: x, from: {env: A}, hosts: [1.2.3.4:443]}":                            "secrets[0].hosts[0]",
		"{name: x, from: {env: A}, hosts: ['a.org at 10.0.0.0/8']}":                  "secrets[0].hosts[0]",
		"{name: x, from: {env: A}, hosts: ['https://a.org']}":                        "secrets[0].hosts[0]",
		"{name: x, from: {env: A}, hosts: [a.org], mode: file}":                      "secrets[0].mode",
		"{name: x, from: {env: A}, hosts: [a.org], headers: ['a b']}":                "secrets[0].headers[0]",
		"{name: x, from: {env: A}, hosts: [a.org], tenants: ['']}":                   "secrets[0].tenants[0]",
		"{name: x, from: {env: A}, hosts: [a.org], value: hunter2}":                  "secrets[0].value",
		"{name: x, from: {env: A}, mode: env}, {name: x, from: {env: A}, mode: env}": "secrets[1].name",
	} {
		_, err := rules.ParseRules([]byte("secrets: [" + text + "]"))
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Field != field || e.Hint == "" {
			t.Errorf("%s: %v, want field %s", text, err, field)
		}
	}
	if _, err := rules.ParseRules([]byte("tls: {roots: x.pem}")); err == nil {
		t.Error("a relative path was taken")
	}
}

package policy_test

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestExplainIsTheDecision: an explanation says what Decide says, of any request.
func TestExplainIsTheDecision(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 11))
		set, req := randomRules(r), policy.Request{Spec: randomSpec(r), Facts: randomFacts(r)}
		c := pick(r, operator, root, tenant, policy.KeyCaller(api.Key{ID: "key-1", Tenant: "tcp", Profiles: []string{"agent", "default"}}))
		p, err := policy.Decide(req, c, set)
		a := policy.Explain(policy.Question{Request: req}, c, set)
		if a.Allowed != (err == nil) || a.Tenant != c.Tenant || a.Operator != c.Operator || a.Verb != "create" {
			t.Fatalf("seed %d: %v, and the explanation %+v", seed, err, a)
		}
		last := a.Steps[len(a.Steps)-1]
		if slices.ContainsFunc(a.Steps[:len(a.Steps)-1], func(s api.PolicyStep) bool { return s.Refused }) || last.Refused != (err != nil) {
			t.Fatalf("seed %d: steps %+v", seed, a.Steps)
		}
		if err != nil {
			e, _ := errors.AsType[*api.Error](err)
			if a.Refusal == nil || a.Refusal.Error() != e.Error() || a.Refusal.Rule != e.Rule || a.Refusal.Code != e.Code || a.Spec != nil {
				t.Fatalf("seed %d: %+v, and the explanation %+v", seed, e, a.Refusal)
			}
			continue
		}
		if !reflect.DeepEqual(*a.Spec, p.Spec()) || !reflect.DeepEqual(a.Adjusted, p.Adjusted()) || len(a.Grants) == 0 {
			t.Fatalf("seed %d: granted %+v, and the explanation %+v", seed, p.Spec(), a)
		}
		for _, g := range a.Grants {
			if g.Field == "" || g.Rule == "" {
				t.Fatalf("seed %d: grants %+v", seed, a.Grants)
			}
		}
	}
}

func rulesOf(a api.PolicyAnswer) map[string]string {
	out := map[string]string{}
	for _, g := range a.Grants {
		out[g.Field] = g.Rule
	}
	return out
}

func TestExplainNamesTheRules(t *testing.T) {
	r := mustParse(t, wholeFile)
	spec := api.SandboxSpec{
		Image: "ghcr.io/acme/tool:1", Mounts: []api.Mount{{Source: "/data/in", Target: "/in", ReadOnly: true}},
		Limits: api.Limits{MemoryBytes: 1 << 30, Pids: 5},
	}
	got := rulesOf(policy.Explain(policy.Question{Request: policy.Request{Spec: spec, Facts: facts()}}, tenant, r))
	want := map[string]string{
		"profile": "profiles.agent", "image": "images[1]", "mounts[0].source": "mounts[0]", "engine": "min_tier",
		"limits.memory_bytes": "profiles.agent.ceilings.memory", "limits.pids": "builtin",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	got = rulesOf(policy.Explain(policy.Question{Request: policy.Request{Spec: spec, Facts: facts()}}, root, r))
	if got["image"] != "operator" || got["mounts[0].source"] != "operator" {
		t.Errorf("the operator's: %v", got)
	}
}

func TestExplainOtherVerbs(t *testing.T) {
	k := policy.KeyCaller(api.Key{ID: "key-1", Tenant: "red", Verbs: []string{"exec", "run"}})
	box := &policy.Settings{Ref: "box", Tenant: "red", Profile: "agent", Cwd: "/"}
	foreign := &policy.Settings{Ref: "other", Tenant: "blue", Profile: "agent", Cwd: "/"}
	ls := &api.ExecRequest{Argv: []string{"ls"}}
	for name, c := range map[string]struct {
		q       policy.Question
		allowed bool
		rule    string
		step    string
	}{
		"exec":         {policy.Question{Verb: policy.VerbExec, Sandbox: box, Exec: ls}, true, "", "exec"},
		"bad exec":     {policy.Question{Verb: policy.VerbExec, Sandbox: box, Exec: &api.ExecRequest{}}, false, "", "exec"},
		"foreign":      {policy.Question{Verb: policy.VerbExec, Sandbox: foreign, Exec: ls}, false, "", "sandbox"},
		"not its verb": {policy.Question{Verb: policy.VerbReadFile, Sandbox: foreign}, false, "key:key-1", "verb"},
		"run":          {policy.Question{Verb: policy.VerbRun, Request: policy.Request{Facts: facts()}, Exec: ls}, true, "", "exec"},
		"create":       {policy.Question{Request: policy.Request{Facts: facts()}}, false, "key:key-1", "verb"},
	} {
		a := policy.Explain(c.q, k, rules.Rules{})
		last := a.Steps[len(a.Steps)-1]
		if a.Allowed != c.allowed || last.Name != c.step || !c.allowed && a.Refusal.Rule != c.rule {
			t.Errorf("%s: %+v, %+v", name, a, a.Refusal)
		}
	}
	if a := policy.Explain(policy.Question{Verb: policy.VerbDoctor}, tenant, rules.Rules{}); a.Allowed || a.Refusal.Rule != "operator_only" {
		t.Errorf("%+v", a)
	}
}

func TestExplainRules(t *testing.T) {
	a, err := policy.ExplainRules([]byte(wholeFile), api.PolicyQuestion{Tenant: "red", Spec: api.SandboxSpec{Image: "debian:12", Mounts: []api.Mount{{Source: "/data", Target: "/d", ReadOnly: true}}}})
	if err != nil || a.Allowed || a.Refusal.Rule != "blocked_paths[0]" || a.Operator || len(a.Assumed) < 3 {
		t.Errorf("%+v, %v", a, err)
	}
	a, err = policy.ExplainRules([]byte(wholeFile), api.PolicyQuestion{Tenant: "red", Spec: api.SandboxSpec{Image: "alpine:3"}})
	if err != nil || a.Allowed || a.Refusal.Rule != "images" || !strings.Contains(a.Refusal.Hint, "smallest rule") {
		t.Errorf("%+v, %v", a, err)
	}
	a, err = policy.ExplainRules(nil, api.PolicyQuestion{Verb: "run", Exec: &api.ExecRequest{Argv: []string{"ls"}}})
	if err != nil || !a.Allowed || !a.Operator {
		t.Errorf("%+v, %v", a, err)
	}
	for name, q := range map[string]api.PolicyQuestion{
		"verb": {Verb: "fly"}, "exec": {Verb: "remove", Exec: &api.ExecRequest{}}, "sandbox of a create": {Sandbox: "box"}, "key": {Key: "key-1"}, "tenant": {Tenant: "A b"},
	} {
		if _, err := policy.ExplainRules(nil, q); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

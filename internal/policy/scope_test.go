package policy_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func keyed(k api.Key) policy.Caller {
	k.ID, k.Tenant = "key-1", "red"
	return policy.KeyCaller(k)
}

func TestDecideKey(t *testing.T) {
	p, err := policy.DecideKey(api.KeySpec{Tenant: "red", Name: "ci", Verbs: []string{"run", "list", "run"}, Profiles: []string{"agent", "agent"}, ExpiresInMS: 5}, operator, rules.Rules{})
	if err != nil || !p.Valid() {
		t.Fatal(err)
	}
	if s := p.Spec(); !slices.Equal(s.Verbs, []string{"list", "run"}) || !slices.Equal(s.Profiles, []string{"agent"}) || s.ExpiresInMS != 5 {
		t.Errorf("granted %+v", s)
	}
	p, err = policy.DecideKey(api.KeySpec{Tenant: "red", Verbs: []string{"observe"}}, operator, rules.Rules{})
	if err != nil || slices.Contains(p.Spec().Verbs, "observe") || !slices.Contains(p.Spec().Verbs, "read_file") || slices.Contains(p.Spec().Verbs, "write_file") {
		t.Errorf("observe is %v, %v", p.Spec().Verbs, err)
	}
	for name, c := range map[string]struct {
		spec   api.KeySpec
		caller policy.Caller
		want   want
	}{
		"a tenant":         {api.KeySpec{Tenant: "tcp"}, tenant, want{code: api.CodeDenied, rule: "operator_only"}},
		"a key":            {api.KeySpec{Tenant: "red"}, keyed(api.Key{}), want{code: api.CodeDenied, rule: "operator_only"}},
		"no tenant":        {api.KeySpec{}, operator, want{code: api.CodeInvalid, field: "tenant"}},
		"tenant":           {api.KeySpec{Tenant: "Red Team"}, operator, want{code: api.CodeInvalid, field: "tenant"}},
		"name":             {api.KeySpec{Tenant: "red", Name: "a\nb"}, operator, want{code: api.CodeInvalid, field: "name"}},
		"verb":             {api.KeySpec{Tenant: "red", Verbs: []string{"run", "sudo"}}, operator, want{code: api.CodeInvalid, field: "verbs[1]", says: "observe"}},
		"operator's verb":  {api.KeySpec{Tenant: "red", Verbs: []string{"create_key"}}, operator, want{code: api.CodeInvalid, field: "verbs[0]"}},
		"profile":          {api.KeySpec{Tenant: "red", Profiles: []string{"nope"}}, operator, want{code: api.CodeInvalid, field: "profiles[0]"}},
		"no profile":       {api.KeySpec{Tenant: "red", Profiles: []string{""}}, operator, want{code: api.CodeInvalid, field: "profiles[0]"}},
		"negative":         {api.KeySpec{Tenant: "red", ExpiresInMS: -1}, operator, want{code: api.CodeInvalid, field: "expires_in_ms"}},
		"too many of them": {api.KeySpec{Tenant: "red", Verbs: slices.Repeat([]string{"run"}, 200)}, operator, want{code: api.CodeTooLarge, field: "verbs"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.DecideKey(c.spec, c.caller, rules.Rules{})
			c.want.check(t, err)
			if p.Valid() {
				t.Error("refused, and valid")
			}
		})
	}
}

func TestAKeyIsForItsProfiles(t *testing.T) {
	k := keyed(api.Key{Profiles: []string{"offline_readonly"}})
	_, err := policy.Decide(policy.Request{Facts: facts()}, k, rules.Rules{})
	want{code: api.CodeDenied, rule: "key:key-1", field: "profile", says: "offline_readonly"}.check(t, err)
	decide(t, api.SandboxSpec{Profile: "offline_readonly"}, k, rules.Rules{})
	in := policy.Settings{Ref: "box", Tenant: "red", Profile: "agent", Cwd: "/"}
	_, err = policy.DecideExec(api.ExecRequest{Argv: []string{"true"}}, in, k, rules.Rules{})
	want{code: api.CodeDenied, rule: "key:key-1"}.check(t, err)
	want{code: api.CodeDenied, rule: "key:key-1"}.check(t, policy.Authorize(k, policy.VerbReadFile, "box", "red", "agent"))
	// Of a foreign one it is not even told what profile it has.
	want{code: api.CodeNotFound}.check(t, policy.Authorize(k, policy.VerbReadFile, "box", "blue", "agent"))
	if policy.SeesSandbox(k, "red", "agent") || !policy.SeesSandbox(k, "red", "offline_readonly") || policy.SeesSandbox(k, "blue", "offline_readonly") {
		t.Error("the list differs")
	}
}

// TestScopeOfUnknownVerbs: a key whose verbs this build does not know is for none.
func TestScopeOfUnknownVerbs(t *testing.T) {
	k := keyed(api.Key{Verbs: []string{"of_the_future"}})
	for _, v := range policy.Verbs() {
		if err := policy.AuthorizeVerb(k, v); (err == nil) != (v == policy.VerbVersion) {
			t.Errorf("%s: %v", v, err)
		}
	}
	if k.Operator {
		t.Error("a key is the operator's")
	}
}

// subset is some of a list, and sometimes all.
func subset(r *rand.Rand, of []string) []string {
	var out []string
	for _, s := range of {
		if r.IntN(3) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// narrower is a scope within k's. An empty list is everything, so that only a full
// one may become another.
func narrower(r *rand.Rand, k api.Key, verbs, profiles []string) api.Key {
	part := func(have, all []string) []string {
		if len(have) == 0 {
			have = all
		}
		if s := subset(r, have); len(s) > 0 {
			return s
		}
		return have[:1]
	}
	k.Verbs, k.Profiles = part(k.Verbs, verbs), part(k.Profiles, profiles)
	return k
}

// TestANarrowerKeyNeverGetsMore: what a key is refused, no narrower one gets, and
// what a narrower one gets is what the wider one gets.
func TestANarrowerKeyNeverGetsMore(t *testing.T) {
	var verbs []string
	for _, v := range policy.Verbs() {
		verbs = append(verbs, string(v))
	}
	profiles := []string{"agent", "default", "offline_readonly", "mine"}
	granted := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 5))
		var wide api.Key
		if r.IntN(2) == 0 {
			wide.Verbs = subset(r, verbs)
		}
		if r.IntN(2) == 0 {
			wide.Profiles = subset(r, profiles)
		}
		a, b := keyed(wide), keyed(narrower(r, wide, verbs, profiles))
		none := a
		none.Key, none.Scope = "", nil
		set, fs, spec := randomRules(r), randomFacts(r), randomSpec(r)
		for _, v := range policy.Verbs() {
			if policy.AuthorizeVerb(b, v) == nil && policy.AuthorizeVerb(a, v) != nil {
				t.Fatalf("seed %d: %s is for the narrower %+v and not for %+v", seed, v, b.Scope, a.Scope)
			}
		}
		req := policy.Request{Spec: spec, Facts: fs}
		got, err := policy.Decide(req, b, set)
		if err != nil {
			continue
		}
		granted++
		for who, c := range map[string]policy.Caller{"wider key": a, "tenant": none} {
			if more, err := policy.Decide(req, c, set); err != nil || !reflect.DeepEqual(more, got) {
				t.Fatalf("seed %d: the %s gets %+v, %v; the narrower %+v", seed, who, more.Spec(), err, got.Spec())
			}
		}
	}
	if granted < 100 {
		t.Errorf("only %d requests were granted", granted)
	}
}

// TestLabelsDecideNothing: they are for audit and billing.
func TestLabelsDecideNothing(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 7))
		set, req := randomRules(r), policy.Request{Spec: randomSpec(r), Facts: randomFacts(r)}
		req.Spec.Labels = nil
		p, err := policy.Decide(req, tenant, set)
		req.Spec.Labels = map[string]string{"tenant": "local", "operator": "true", "profile": "agent"}
		q, err2 := policy.Decide(req, tenant, set)
		if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Fatalf("seed %d: %v, with labels %v", seed, err, err2)
		}
		a, b := p.Spec(), q.Spec()
		b.Labels = nil
		if !reflect.DeepEqual(a, b) || !reflect.DeepEqual(p.Mounts(), q.Mounts()) || p.Tenant() != q.Tenant() {
			t.Fatalf("seed %d: labels change the grant", seed)
		}
	}
}

// FuzzAgentArguments: an agent says command, working directory, timeout and
// environment, and whatever it says, it stays in the sandbox that it was given, as
// the user and within the limits that were granted.
func FuzzAgentArguments(f *testing.F) {
	f.Add("ls", "/workspace", int64(1000), "A", "b")
	f.Add("cat /etc/shadow", "/../..", int64(0), "CLOCHE_TOKEN", "x")
	f.Add("\x00", "rel", int64(-1), "PATH=", "\n")
	f.Add("x", "", int64(1<<62), "TENANT", "local")
	f.Fuzz(func(t *testing.T, argv, workdir string, timeout int64, name, value string) {
		in := policy.Settings{
			Ref: "sb-1", Tenant: "red", Profile: "default", User: "1000:1000", Cwd: "/workspace", Env: map[string]string{"HOME": "/root"},
			Limits: api.Limits{TimeoutMS: 30_000, MaxOutputBytes: 4096},
		}
		k := keyed(api.Key{Profiles: []string{"default"}})
		before := policy.SettingsOf(api.Sandbox{})
		req := api.ExecRequest{Argv: []string{"/bin/sh", "-c", argv}, Cwd: workdir, TimeoutMS: &timeout, Env: map[string]string{name: value}}
		p, err := policy.DecideExec(req, in, k, rules.Rules{})
		if err == nil {
			switch {
			case p.User() != in.User, p.MaxOutput() != 4096:
				t.Fatalf("user %q, output %d", p.User(), p.MaxOutput())
			case p.Timeout() <= 0 || p.Timeout().Milliseconds() > 120_000:
				t.Fatalf("timeout %v", p.Timeout())
			case !strings.HasPrefix(p.Cwd(), "/"), len(p.Env()) > 2, name != "HOME" && p.Env()["HOME"] != "/root":
				t.Fatalf("cwd %q, env %v", p.Cwd(), p.Env())
			}
		}
		// To another's sandbox, or one of another profile, the same words lead nowhere.
		for _, other := range []policy.Settings{{Ref: "sb-2", Tenant: "blue", Profile: "default"}, {Ref: "sb-3", Tenant: "red", Profile: "agent"}} {
			if p, err := policy.DecideExec(req, other, k, rules.Rules{}); err == nil || p.Valid() {
				t.Fatalf("granted in %s", other.Ref)
			}
		}
		if !reflect.DeepEqual(before, policy.SettingsOf(api.Sandbox{})) || in.Env["HOME"] != "/root" || len(in.Env) != 1 {
			t.Fatal("the settings of the sandbox were changed")
		}
	})
}

// TestVerbsOfEarlierVersions: keys and questions can have the old names of verbs.
func TestVerbsOfEarlierVersions(t *testing.T) {
	k := keyed(api.Key{Verbs: []string{"run_program"}})
	if err := policy.AuthorizeVerb(k, policy.VerbJob); err != nil {
		t.Errorf("a recorded key: %v", err)
	}
	if policy.AuthorizeVerb(k, policy.VerbCancelJob) == nil {
		t.Error("a recorded key permits another verb")
	}
	p, err := policy.DecideKey(api.KeySpec{Tenant: "red", Verbs: []string{"get_program", "get_job"}}, policy.Caller{Tenant: "local", Operator: true}, rules.Rules{})
	if got := p.Spec().Verbs; err != nil || len(got) != 1 || got[0] != "get_job" {
		t.Errorf("a new key is for %q, %v", got, err)
	}
	if q, err := policy.QuestionOf(api.PolicyQuestion{Verb: "run_program"}); err != nil || q.Verb != policy.VerbJob {
		t.Errorf("a question is about %s, %v", q.Verb, err)
	}
}

package policy_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// nameFor is the name that a template gives, by way of a create.
func nameFor(t *testing.T, template string, id *api.Identity, set rules.Rules) (string, error) {
	t.Helper()
	spec := api.SandboxSpec{Naming: api.Naming{NameTemplate: template, Identity: id}}
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, tenant, set)
	if err != nil {
		return "", err
	}
	name := p.Spec().Name
	if !api.ValidName(name) {
		t.Fatalf("%q with %+v gives the name %q, which is not valid", template, id, name)
	}
	// An exec of the same identity means the same sandbox.
	target, err := policy.DecideTarget(api.RefByNaming, spec.Naming, tenant, set)
	if err != nil || target.Ref() != name {
		t.Fatalf("a create of %q with %+v makes %q, an exec means %q: %v", template, id, name, target.Ref(), err)
	}
	return name, nil
}

func TestNameFromTemplate(t *testing.T) {
	group := &api.Identity{LauncherType: "group", LauncherID: "-100123", SenderID: "42", QueryID: "7"}
	for _, tc := range []struct {
		name, template string
		id             *api.Identity
		want           string // a regular expression
	}{
		{"the default", "", group, `group_-100123`},
		{"every variable", "{launcher_type}_{launcher_id}_{sender_id}_{query_id}_{global}", group, `group_-100123_42_7_global`},
		{"global alone", "{global}", group, "global"},
		{"global without identity", "{global}", nil, "global"},
		{"text alone", "shared-box", nil, "shared-box"},
		{"launcher_type is else query", "", &api.Identity{LauncherID: "5"}, "query_5"},
		{"launcher_id is else query_id", "", &api.Identity{QueryID: "7"}, "query_7"},
		{"launcher_id is else unknown", "", &api.Identity{LauncherType: "person", SenderID: "42"}, "person_unknown"},
		{"sender_id is else launcher_id", "u_{sender_id}", &api.Identity{LauncherID: "5", QueryID: "7"}, "u_5"},
		{"sender_id is else query_id", "u_{sender_id}", &api.Identity{QueryID: "7"}, "u_7"},
		{"sender_id is else unknown", "{launcher_type}_{sender_id}", &api.Identity{LauncherType: "person"}, "person_unknown"},
		{"query_id has nothing else", "{launcher_id}_{query_id}", &api.Identity{LauncherID: "5"}, "5_unknown"},
		{"one that nobody knows", "{launcher_id}_{pipeline}", group, `100123_unknown\.[0-9a-z]{26}`},
		{"one of the caller's own", "p_{pipeline}_{launcher_id}", &api.Identity{LauncherID: "5", Variables: map[string]string{"pipeline": "blue"}}, "p_blue_5"},
		{"an empty one is none", "{launcher_id}_{pipeline}", &api.Identity{LauncherID: "5", Variables: map[string]string{"pipeline": ""}}, "5_unknown"},
		{"other letters", "", &api.Identity{LauncherType: "group", LauncherID: "张三"}, `group\.[0-9a-z]{26}`},
		{"nothing that can be read", "{launcher_id}", &api.Identity{LauncherID: "张三"}, `n\.[0-9a-z]{26}`},
		{"capitals", "", &api.Identity{LauncherType: "group", LauncherID: "Ab"}, `group_ab\.[0-9a-z]{26}`},
		{"too long", "", &api.Identity{LauncherType: "group", LauncherID: strings.Repeat("a", 1000)}, `group_a{30}\.[0-9a-z]{26}`},
		{"the form of an id", "{launcher_id}", &api.Identity{LauncherID: "sb-4k2mwd7e3x9qv0ha"}, `sb-4k2mwd7e3x9qv0ha\.[0-9a-z]{26}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := nameFor(t, tc.template, tc.id, rules.Rules{})
			if err != nil || !regexp.MustCompile("^"+tc.want+"$").MatchString(got) {
				t.Errorf("got %q, %v; want %s", got, err, tc.want)
			}
		})
	}
}

// TestCallersVariablesNeverOverrideIdentity: a variable of an identity's name is
// not looked at, whether the identity has a value or not.
func TestCallersVariablesNeverOverrideIdentity(t *testing.T) {
	all := "{launcher_type}_{launcher_id}_{sender_id}_{query_id}_{global}"
	forged := map[string]string{"launcher_type": "person", "launcher_id": "1", "sender_id": "2", "query_id": "3", "global": "4"}
	for _, id := range []api.Identity{
		{LauncherType: "group", LauncherID: "5", SenderID: "6", QueryID: "7"}, {LauncherID: "5"}, {QueryID: "7"}, {SenderID: "6"},
	} {
		honest, err := nameFor(t, all, &id, rules.Rules{})
		if err != nil {
			t.Fatal(err)
		}
		id.Variables = forged
		if got, err := nameFor(t, all, &id, rules.Rules{}); got != honest || err != nil {
			t.Errorf("with variables %q, %v; without %q", got, err, honest)
		}
	}
	if _, err := nameFor(t, "", &api.Identity{Variables: forged}, rules.Rules{}); err == nil {
		t.Error("variables that call themselves an identity make a name")
	}
}

func TestBadTemplates(t *testing.T) {
	for _, text := range []string{
		"{", "}", "{}", "a{b", "a}b", "{launcher_id!r}", "{launcher_id:>10}", "{a.b}", "{a[0]}", "{{a}}", "{a{b}}", "{ a }", "{1a}", "{é}", "a\nb",
		"a\x00", "\xff", strings.Repeat("x", 257), strings.Repeat("{a}", 17), "{" + strings.Repeat("a", 65) + "}", "%s{}", "{0}", "{launcher_id}}",
	} {
		_, err := nameFor(t, text, &api.Identity{LauncherID: "5"}, rules.Rules{})
		want{code: api.CodeInvalid, field: "name_template"}.check(t, err)
		if !utf8.ValidString(text) {
			continue // the YAML library makes other text of it
		}
		if _, err := rules.ParseRules([]byte("names: {template: " + quoted(text) + "}")); err == nil {
			t.Errorf("a policy file with the template %q is taken", text)
		}
	}
	long := strings.Repeat("v", 5000)
	for field, id := range map[string]*api.Identity{
		"identity.launcher_id": {LauncherID: long}, "identity.sender_id": {SenderID: "a\nb"}, "identity.launcher_type": {LauncherType: "\xff"},
		"identity.variables.a": {Variables: map[string]string{"a": long}}, "identity.variables.b": {Variables: map[string]string{"b": "\xff"}},
		"identity.variables.a-b": {Variables: map[string]string{"a-b": "x"}},
	} {
		_, err := nameFor(t, "", id, rules.Rules{})
		if api.CodeOf(err) == api.CodeTooLarge {
			want{code: api.CodeTooLarge, field: field}.check(t, err)
		} else {
			want{code: api.CodeInvalid, field: field}.check(t, err)
		}
		if _, err := policy.DecideTarget("box", api.Naming{Identity: id}, tenant, rules.Rules{}); err == nil {
			t.Errorf("an exec with a bad %s is taken", field)
		}
	}
}

// quoted is text as a YAML scalar that decodes to the same, as far as YAML can.
func quoted(s string) string {
	return `"` + strings.NewReplacer("\n", `\n`, "\x00", `\0`).Replace(s) + `"`
}

// TestNamesOfNobody: what tells nothing of who asks is refused, unless the operator
// lets everybody share.
func TestNamesOfNobody(t *testing.T) {
	for template, id := range map[string]*api.Identity{
		"{launcher_id}": {}, "{sender_id}": {LauncherType: ""}, "{pipeline}_{sender_id}": {Variables: map[string]string{"other": "x"}},
		"{launcher_type}_{launcher_id}": {}, "{global}_{query_id}": nil, "{nobody}": {LauncherID: "5"},
	} {
		_, err := nameFor(t, template, id, rules.Rules{})
		want{code: api.CodeDenied, rule: "names.allow_shared", field: "identity", says: "allow_shared: true"}.check(t, err)
		if got, err := nameFor(t, template, id, mustParse(t, "names: {allow_shared: true}")); err != nil || !strings.Contains(got, "unknown") {
			t.Errorf("%s shared: %q, %v", template, got, err)
		}
	}
}

// identities differ in what is known, in ways that a simple encoding mixes up.
func identities() []api.Identity {
	values := []string{
		"", "a", "b", "A", "a_b", "a-b", "b_c", "_", "-", ".", "a.b", " a", "a ", "é", "e\u0301", "É", "ß", "ss", "张三", "張三", "unknown", "global", "{a}",
		"sb-4k2mwd7e3x9qv0ha", strings.Repeat("x", 60), strings.Repeat("x", 61), strings.Repeat("x", 1000), "a_b_c", "n", "/", "a/b", "%2f", "ａ", "а",
	}
	var out []api.Identity
	for _, a := range values {
		for _, b := range values {
			if a != "" && b != "" {
				out = append(out, api.Identity{LauncherType: a, LauncherID: b})
			}
		}
	}
	return out
}

// TestKnownValuesNeverCollide compares every pair of many identities under many
// templates: two names are the same only where all that the template asks for is.
func TestKnownValuesNeverCollide(t *testing.T) {
	for _, template := range []string{
		"", "{launcher_type}{launcher_id}", "{launcher_type}-{launcher_id}", "{launcher_type}.{launcher_id}", "{launcher_type}a_{launcher_id}",
		"{launcher_type}_{launcher_id}_{launcher_type}", "x{launcher_type}__{launcher_id}y", "机器人_{launcher_type}_{launcher_id}", "Box_{launcher_type}:{launcher_id}",
	} {
		seen := map[string]api.Identity{}
		for _, id := range identities() {
			name, err := nameFor(t, template, &id, rules.Rules{})
			if err != nil {
				t.Fatal(err)
			}
			if other, taken := seen[name]; taken {
				t.Fatalf("%q names both %+v and %+v %q", template, id, other, name)
			}
			seen[name] = id
		}
	}
}

// TestKnownIsNotUnknown: a user with the name "unknown" shares no sandbox with an unknown user.
func TestKnownIsNotUnknown(t *testing.T) {
	known, err := nameFor(t, "{launcher_type}_{sender_id}", &api.Identity{LauncherType: "person", SenderID: "unknown"}, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	none, err := nameFor(t, "{launcher_type}_{sender_id}", &api.Identity{LauncherType: "person"}, rules.Rules{})
	if err != nil || known == none || none != "person_unknown" {
		t.Errorf("known %q, unknown %q, %v", known, none, err)
	}
}

// FuzzNamesNeverCollide has two identities and a template of the fuzzer's choice.
func FuzzNamesNeverCollide(f *testing.F) {
	f.Add("{launcher_type}_{launcher_id}", "a_b", "c", "a", "b_c")
	f.Add("{launcher_type}{launcher_id}", "ab", "c", "a", "bc")
	f.Add("{launcher_type}-{launcher_id}", "a-b", "c", "a", "b-c")
	f.Add("{launcher_id}_{launcher_type}x_", "é", "E", "e\u0301", "e")
	f.Add("{launcher_type}_{launcher_id}", "a", strings.Repeat("x", 61), "a", strings.Repeat("x", 62))
	f.Add("_{launcher_type}_{launcher_id}.", "n", "unknown", "n.", "-")
	f.Fuzz(func(t *testing.T, template, a1, a2, b1, b2 string) {
		if !strings.Contains(template, "{launcher_type}") || !strings.Contains(template, "{launcher_id}") || a1 == "" || a2 == "" || b1 == "" || b2 == "" {
			return
		}
		a, errA := nameFor(t, template, &api.Identity{LauncherType: a1, LauncherID: a2}, rules.Rules{})
		b, errB := nameFor(t, template, &api.Identity{LauncherType: b1, LauncherID: b2}, rules.Rules{})
		if errA != nil || errB != nil {
			return
		}
		if (a == b) != (a1 == b1 && a2 == b2) {
			t.Errorf("%q names %q %q %q, and %q %q %q", template, a1, a2, a, b1, b2, b)
		}
	})
}

const forced = `names: {template: "{launcher_type}_{launcher_id}", force: true}`

func TestForcedTemplate(t *testing.T) {
	set := mustParse(t, forced)
	me := &api.Identity{LauncherType: "person", LauncherID: "5"}
	for _, c := range []policy.Caller{operator, root, tenant} {
		for _, naming := range []api.Naming{{Identity: me}, {Identity: me, NameTemplate: "{global}"}, {Identity: me, NameTemplate: "{"}} {
			for _, name := range []string{"", "person_5"} {
				p := decide(t, api.SandboxSpec{Name: name, Naming: naming}, c, set)
				if got := p.Spec(); got.Name != "person_5" || got.NameTemplate != "" {
					t.Errorf("%q with %+v became %+v", name, naming, got)
				}
				if adjusted := len(p.Adjusted()) == 1; adjusted != (naming.NameTemplate != "") {
					t.Errorf("a template of the caller's own is not reported: %+v", p.Adjusted())
				}
			}
		}
		_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Name: "person_6", Naming: api.Naming{Identity: me}}, Facts: facts()}, c, set)
		want{code: api.CodeDenied, rule: "names.force", field: "name", says: "person_5"}.check(t, err)
		_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Name: "person_6"}, Facts: facts()}, c, set)
		want{code: api.CodeDenied, rule: "names.allow_shared", field: "identity"}.check(t, err)
		_, err = policy.Decide(policy.Request{Facts: facts()}, c, set)
		want{code: api.CodeDenied, rule: "names.allow_shared"}.check(t, err)
		checkForcedTarget(t, c, set, me)
	}
}

// checkForcedTarget is of execs and process starts.
func checkForcedTarget(t *testing.T, c policy.Caller, set rules.Rules, me *api.Identity) {
	t.Helper()
	mine := api.Sandbox{ID: "sb-mine", Name: "person_5", Tenant: c.Tenant}
	for _, tc := range []struct {
		ref   string
		found api.Sandbox
		rule  string
	}{
		{api.RefByNaming, mine, ""}, {"person_5", mine, ""}, {"sb-mine", mine, ""},
		{"person_6", mine, "names.force"}, {"sb-other", mine, "names.force"}, {"", mine, "names.force"},
	} {
		target, err := policy.DecideTarget(tc.ref, api.Naming{Identity: me, NameTemplate: "{global}"}, c, set)
		if err != nil || target.Ref() != "person_5" {
			t.Fatalf("%q leads to %q: %v", tc.ref, target.Ref(), err)
		}
		err = target.Check(tc.found)
		if (err == nil) != (tc.rule == "") {
			t.Errorf("%q: %v", tc.ref, err)
		} else if err != nil {
			want{code: api.CodeDenied, rule: tc.rule, field: "sandbox"}.check(t, err)
			// That there is no such sandbox does not change the answer.
			want{code: api.CodeDenied, rule: tc.rule}.check(t, target.Missing(policy.NoSandbox("person_5")))
		}
		foreign := mine
		foreign.Tenant = "another"
		if err := target.Check(foreign); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("%q reaches a sandbox of the same name of another tenant: %v", tc.ref, err)
		}
	}
	_, err := policy.DecideTarget("person_5", api.Naming{}, c, set)
	want{code: api.CodeDenied, rule: "names.allow_shared"}.check(t, err)
}

func TestTargetWithoutForce(t *testing.T) {
	set := mustParse(t, `names: {template: "op_{launcher_id}"}`)
	me := &api.Identity{LauncherType: "person", LauncherID: "5"}
	for _, tc := range []struct {
		ref    string
		naming api.Naming
		leads  string
		want   want
	}{
		{"box", api.Naming{}, "box", want{}},
		{"box", api.Naming{Identity: me}, "box", want{}},
		{"-", api.Naming{Identity: me}, "op_5", want{}},
		{"-", api.Naming{Identity: me, NameTemplate: "{launcher_type}_x"}, "person_x", want{}},
		{"-", api.Naming{NameTemplate: "shared"}, "shared", want{}},
		{"-", api.Naming{}, "", want{code: api.CodeInvalid, field: "identity"}},
		{"box", api.Naming{NameTemplate: "{global}"}, "", want{code: api.CodeInvalid, field: "name_template"}},
	} {
		target, err := policy.DecideTarget(tc.ref, tc.naming, tenant, set)
		if tc.want.code != "" {
			tc.want.check(t, err)
		} else if err != nil || target.Ref() != tc.leads || target.Check(api.Sandbox{Name: "any"}) != nil {
			t.Errorf("%q with %+v leads to %q, %v; want %q", tc.ref, tc.naming, target.Ref(), err, tc.leads)
		}
	}
	_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Name: "box", Naming: api.Naming{NameTemplate: "x"}}, Facts: facts()}, tenant, set)
	want{code: api.CodeInvalid, field: "name_template"}.check(t, err)
	if p := decide(t, api.SandboxSpec{Name: "box", Naming: api.Naming{Identity: me}}, tenant, set); p.Spec().Name != "box" {
		t.Errorf("an identity renames a sandbox that has a name: %q", p.Spec().Name)
	}
	if err := policy.RunNaming(api.RunRequest{Exec: api.ExecRequest{Naming: api.Naming{Identity: me}}}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a run whose program names another sandbox: %v", err)
	}
}

// TestForcedNamesAreStable: a granted spec decided again is the same, under every
// rule, which is what makes a name a scope.
func TestForcedNamesAreStable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := identities()
	for range 2000 {
		id := all[r.IntN(len(all))]
		set := rules.Rules{Names: rules.NameRule{Force: r.IntN(2) == 0, Template: pick(r, "", "{sender_id}", "x_{launcher_id}"), AllowShared: true}}
		checkDecision(t, policy.Request{Spec: api.SandboxSpec{Naming: api.Naming{
			NameTemplate: pick(r, "", "{launcher_id}", "{a}{b}"), Identity: pick(r, nil, &id),
		}}, Facts: facts()}, pick(r, operator, tenant), set)
	}
}

func TestNamesInThePolicyFile(t *testing.T) {
	for text, key := range map[string]string{
		`names: {template: "{launcher_id:x}"}`: "names.template", `names: {forced: true}`: "names.forced", `names: {force: maybe}`: "names.force",
	} {
		_, err := rules.ParseRules([]byte(text))
		want{code: api.CodeInvalid, field: key}.check(t, err)
	}
	for text, says := range map[string]string{
		`names: {template: "box", force: true}`:                       "same name",
		`names: {template: "{global}", force: true}`:                  "same name",
		`names: {template: "{launcher_id}_{pipeline}", force: true}`:  "chooses its value",
		`names: {template: "{launcher_id}_{pipeline}", force: false}`: "",
		`names: {template: "{launcher_id}_{sender_id}", force: true}`: "",
		`names: {force: true}`:                                        "",
	} {
		problems := policy.CheckFile([]byte(text))
		if (says == "") != (len(problems) == 0) || says != "" && (!problems[0].Warning || !strings.Contains(problems[0].Message, says)) {
			t.Errorf("%s: %+v", text, problems)
		}
	}
}

package policy_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const (
	no = api.AccessNone
	ro = api.AccessRead
	rw = api.AccessWrite
)

// accessOf is the access to p in plain words: the longest rule that holds it.
func accessOf(base api.PathAccess, set []api.PathRule, p string) api.PathAccess {
	for ; p != "."; p = path.Dir(p) {
		for _, r := range set {
			if path.Clean(r.Path) == p {
				return r.Access
			}
		}
	}
	return base
}

func rank(a api.PathAccess) int { return strings.Index("none ro rw", string(a)) }

func withRules(source string, readOnly bool, set ...api.PathRule) api.SandboxSpec {
	s := mount(source, readOnly)
	s.Mounts[0].Rules = set
	return s
}

func TestPathRulesAreCleanedAndSorted(t *testing.T) {
	spec := withRules("/data", false,
		api.PathRule{Path: "src/generated/", Access: rw}, api.PathRule{Path: "./src", Access: ro}, api.PathRule{Path: "plain", Access: rw},
		api.PathRule{Path: "src/x", Access: ro}, api.PathRule{Path: "a//b", Access: no},
	)
	p := decide(t, spec, root, rules.Rules{})
	want := []api.PathRule{{Path: "a/b", Access: no}, {Path: "src", Access: ro}, {Path: "src/generated", Access: rw}}
	if got := p.Spec().Mounts[0].Rules; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestPathRulesRefused(t *testing.T) {
	many := make([]api.PathRule, 65)
	for i := range many {
		many[i] = api.PathRule{Path: fmt.Sprint("d", i), Access: no}
	}
	for name, c := range map[string]struct {
		readOnly bool
		rules    []api.PathRule
		w        want
	}{
		"absolute":       {false, []api.PathRule{{Path: "/etc", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"of Windows":     {false, []api.PathRule{{Path: `C:\x`, Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"upwards":        {false, []api.PathRule{{Path: "a", Access: no}, {Path: "b/../..", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[1].path"}},
		"a NUL":          {false, []api.PathRule{{Path: "a\x00", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"everything":     {false, []api.PathRule{{Path: "./", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"empty":          {false, []api.PathRule{{Path: "", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"no access":      {false, []api.PathRule{{Path: "a", Access: "x"}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].access"}},
		"twice":          {false, []api.PathRule{{Path: "a", Access: no}, {Path: "a/.", Access: ro}}, want{code: api.CodeInvalid, field: "mounts[0].rules[1].path"}},
		"wider":          {true, []api.PathRule{{Path: "a", Access: rw}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].access"}},
		"out of reach":   {false, []api.PathRule{{Path: "a/b", Access: ro}, {Path: "a", Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
		"too many":       {false, many, want{code: api.CodeTooLarge, field: "mounts[0].rules"}},
		"too deep":       {false, []api.PathRule{{Path: strings.Repeat("d/", 32) + "f", Access: no}}, want{code: api.CodeTooLarge, field: "mounts[0].rules[0].path"}},
		"a path too far": {false, []api.PathRule{{Path: strings.Repeat("x", 5000), Access: no}}, want{code: api.CodeInvalid, field: "mounts[0].rules[0].path"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Decide(policy.Request{Spec: withRules("/data", c.readOnly, c.rules...), Facts: facts()}, root, rules.Rules{})
			c.w.check(t, err)
			w := api.SandboxSpec{Workspace: &api.Workspace{ReadOnly: c.readOnly, Rules: c.rules}}
			_, err = policy.Decide(policy.Request{Spec: w, Facts: facts()}, root, rules.Rules{})
			c.w.field = strings.Replace(c.w.field, "mounts[0]", "workspace", 1)
			c.w.check(t, err)
		})
	}
}

func TestGlobsAreRefusedByName(t *testing.T) {
	spec := mount("/data", true)
	spec.Mounts[0].Globs = []api.PathGlob{{Pattern: "**/.env", Access: no}}
	_, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, root, rules.Rules{})
	want{code: api.CodeUnsupported, field: "mounts[0].globs", says: "mounts[0].rules"}.check(t, err)
	spec = api.SandboxSpec{Workspace: &api.Workspace{Globs: []api.PathGlob{{Pattern: "*", Access: ro}}}}
	_, err = policy.Decide(policy.Request{Spec: spec, Facts: facts()}, root, rules.Rules{})
	want{code: api.CodeUnsupported, field: "workspace.globs"}.check(t, err)
}

func TestNothingIsPutWhereNobodyGetsIn(t *testing.T) {
	spec := withRules("/data", false, api.PathRule{Path: "s", Access: no})
	spec.Mounts = append(spec.Mounts, api.Mount{Source: "/datax", Target: "/m/s/sub"})
	_, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, root, rules.Rules{})
	want{code: api.CodeInvalid, field: "mounts[1].target", says: "mounts[0].rules"}.check(t, err)
	spec = withRules("/data", false, api.PathRule{Path: "s", Access: no})
	spec.Files = []api.File{{Path: "/m/s/f"}}
	_, err = policy.Decide(policy.Request{Spec: spec, Facts: facts()}, root, rules.Rules{})
	want{code: api.CodeInvalid, field: "files[0].path"}.check(t, err)
}

func TestRulesOfGrants(t *testing.T) {
	set := mustParse(t, `mounts: [{root: /data, write: true, rules: [{path: in/secrets, access: none}, {path: in/lib, access: ro}, {path: shut, access: none}]}]`)
	for name, c := range map[string]struct {
		source   string
		readOnly bool
		asked    []api.PathRule
		want     []api.PathRule
	}{
		"the root":            {"/data", false, nil, []api.PathRule{{Path: "in/lib", Access: ro}, {Path: "in/secrets", Access: no}, {Path: "shut", Access: no}}},
		"below it":            {"/data/in", false, nil, []api.PathRule{{Path: "lib", Access: ro}, {Path: "secrets", Access: no}}},
		"to read":             {"/data/in", true, nil, []api.PathRule{{Path: "secrets", Access: no}}},
		"asked for more":      {"/data/in", false, []api.PathRule{{Path: "secrets", Access: rw}, {Path: "lib/x", Access: rw}}, []api.PathRule{{Path: "lib", Access: ro}, {Path: "secrets", Access: no}}},
		"asked for less":      {"/data/in", false, []api.PathRule{{Path: "lib", Access: no}}, []api.PathRule{{Path: "lib", Access: no}, {Path: "secrets", Access: no}}},
		"asked for less at a": {"/data/in", false, []api.PathRule{{Path: "lib/x", Access: no}}, []api.PathRule{{Path: "lib", Access: ro}, {Path: "lib/x", Access: no}, {Path: "secrets", Access: no}}},
	} {
		for who, caller := range map[string]policy.Caller{"tenant": tenant, "root": root} {
			t.Run(name+"/"+who, func(t *testing.T) {
				got := decide(t, withRules(c.source, c.readOnly, c.asked...), caller, set).Spec().Mounts[0].Rules
				if !reflect.DeepEqual(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		}
	}
	f := facts()
	f.Dirs["/data/shut/x"] = dir("/data/shut/x", 0)
	f.Dirs["/data/in/lib"] = dir("/data/in/lib", 0)
	want{code: api.CodeDenied, rule: "mounts"}.check(t, decideDir(t, "/data/shut/x", true, f, tenant, set))
	want{code: api.CodeDenied, rule: "mounts"}.check(t, decideDir(t, "/data/in/lib", false, f, root, set))
	if err := decideDir(t, "/data/in/lib", true, f, tenant, set); err != nil {
		t.Error(err)
	}
	// A grant without rules gives more, and counts.
	set.Mounts = append(set.Mounts, rules.MountRule{Root: "/data/in"})
	if got := decide(t, withRules("/data/in", false), tenant, set).Spec().Mounts[0].Rules; !reflect.DeepEqual(got, []api.PathRule{{Path: "lib", Access: ro}, {Path: "secrets", Access: ro}}) {
		t.Errorf("two grants: %v", got)
	}
	for text, field := range map[string]string{
		"{root: /d, rules: [{path: a, access: rw}]}":                                           "mounts[0].rules[0].access",
		"{root: /d, rules: [{path: /a, access: ro}]}":                                          "mounts[0].rules[0].path",
		"{root: /d, rules: [{path: a, access: none}, {path: a/b, access: ro}]}":                "mounts[0].rules[1].path",
		"{root: /d, write: true, rules: [{path: a, access: none}, {path: ./a, access: none}]}": "mounts[0].rules[1].path",
	} {
		_, err := rules.ParseRules([]byte("mounts: [" + text + "]"))
		want{code: api.CodeInvalid, field: field}.check(t, err)
	}
}

// For every path, what is in force is the weaker of what the request and what the
// widest grant say, and no more than the mount gives.
func TestStricterRuleWins(t *testing.T) {
	names := []string{"a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "a/b/c"}
	draw := func(r *rand.Rand, most api.PathAccess) []api.PathRule {
		var out []api.PathRule
		for _, n := range names {
			a := pick(r, no, ro, rw)
			if r.IntN(3) == 0 && rank(a) <= rank(most) && accessOf(most, out, path.Dir(n)) != no {
				out = append(out, api.PathRule{Path: n, Access: a})
			}
		}
		return out
	}
	narrowed := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		base := pick(r, ro, rw)
		asked := draw(r, base)
		var set rules.Rules
		for range 1 + r.IntN(2) {
			m := rules.MountRule{Root: "/data", Write: true}
			for _, g := range draw(r, rw) {
				m.Rules = append(m.Rules, rules.PathRule{Path: g.Path, Access: g.Access})
			}
			set.Mounts = append(set.Mounts, m)
		}
		got := decide(t, withRules("/data", base == ro, asked...), pick(r, tenant, root), set).Spec().Mounts[0].Rules
		for _, p := range append(names, "c", "a/a/a/x") {
			widest := no
			for _, m := range set.Mounts {
				var g []api.PathRule
				for _, x := range m.Rules {
					g = append(g, api.PathRule{Path: x.Path, Access: x.Access})
				}
				if a := accessOf(rw, g, p); rank(a) > rank(widest) {
					widest = a
				}
			}
			want := accessOf(base, asked, p)
			if rank(widest) < rank(want) {
				want, narrowed = widest, narrowed+1
			}
			if have := accessOf(base, got, p); have != want {
				t.Fatalf("%s is %s, want %s: asked %v of a mount %s, grants %+v, in force %v", p, have, want, asked, base, set.Mounts, got)
			}
		}
	}
	if narrowed < 1000 {
		t.Errorf("grants narrowed only %d paths: the sample says little", narrowed)
	}
}

//go:build linux

package core_test

import (
	"context"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func identity(id string) api.Naming {
	return api.Naming{Identity: &api.Identity{LauncherType: "group", LauncherID: id}}
}

// ways are the calls that a forced template holds for.
func (h *fixture) calls(ctx context.Context, c core.Caller) map[string]func(ref string, n api.Naming) error {
	req := func(n api.Naming) api.ExecRequest {
		return api.ExecRequest{Naming: n, Argv: []string{"true"}, Cwd: "/"}
	}
	return map[string]func(ref string, n api.Naming) error{
		"exec": func(ref string, n api.Naming) error { _, err := h.Exec(ctx, c, ref, req(n)); return err },
		"exec stream": func(ref string, n api.Naming) error {
			st, err := h.ExecStream(ctx, c, ref, req(n))
			if err == nil {
				err = st.Close()
			}
			return err
		},
		"start": func(ref string, n api.Naming) error {
			_, err := h.StartProcess(ctx, c, ref, api.ProcessSpec{ExecRequest: req(n)})
			return err
		},
	}
}

func TestNamesByIdentity(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	mine, err := h.Create(t.Context(), red, api.SandboxSpec{Naming: identity("4_2")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := h.Create(t.Context(), blue, api.SandboxSpec{Naming: identity("4_2")}, nil)
	if err != nil || theirs.Name != mine.Name || theirs.ID == mine.ID {
		t.Fatalf("two tenants of one identity: %s %s and %s %s, %v", mine.ID, mine.Name, theirs.ID, theirs.Name, err)
	}
	for c, own := range map[*core.Caller]api.Sandbox{&red: mine, &blue: theirs} {
		if got, err := h.ResolveName(t.Context(), *c, identity("4_2")); err != nil || got.Sandbox != own.ID || got.Name != own.Name {
			t.Errorf("%s: %+v, %v", c.Tenant, got, err)
		}
		for call, do := range h.calls(t.Context(), *c) {
			if err := do(api.RefByNaming, identity("4_2")); err != nil {
				t.Errorf("%s: %s: %v", c.Tenant, call, err)
			}
			if err := do(api.RefByNaming, identity("42")); api.CodeOf(err) != api.CodeNotFound {
				t.Errorf("%s: %s of another identity: %v", c.Tenant, call, err)
			}
		}
	}
	if got, err := h.ResolveName(t.Context(), red, identity("none")); err != nil || got.Name != "group_none" || got.Sandbox != "" {
		t.Errorf("a sandbox that is not there: %+v, %v", got, err)
	}
	if i := h.Info(t.Context(), red); i.ScopeForced || !i.ScopeEditable || i.Tenant != "red" || i.Operator || i.NameTemplate != api.DefaultNameTemplate {
		t.Errorf("info %+v", i)
	}
}

// TestForcedNames: every way to make or to use a sandbox, for every caller.
func TestForcedNames(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	old, err := h.Create(t.Context(), red, api.SandboxSpec{Name: "old"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rules := rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Names: rules.NameRule{Force: true}}
	if err := h.UseRules(t.Context(), rules, "digest"); err != nil {
		t.Fatal(err)
	}
	if i := h.Info(t.Context(), red); !i.ScopeForced || i.ScopeEditable {
		t.Errorf("info %+v", i)
	}
	denied := func(what string, err error, rule string) {
		t.Helper()
		if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != rule {
			t.Errorf("%s: %v, rule %q", what, err, e.Rule)
		}
	}
	for _, c := range []core.Caller{operator, red} {
		mine, err := h.Create(t.Context(), c, api.SandboxSpec{Naming: identity("1")}, nil)
		if err != nil || mine.Name != "group_1" {
			t.Fatalf("%s: %+v, %v", c.Tenant, mine, err)
		}
		named := api.SandboxSpec{Name: "other", Naming: identity("2")}
		_, err = h.Create(t.Context(), c, named, nil)
		denied("create", err, "names.force")
		_, _, err = h.Hold(t.Context(), c, named, nil)
		denied("hold", err, "names.force")
		_, err = h.Run(t.Context(), c, api.RunRequest{Spec: named, Exec: api.ExecRequest{Argv: []string{"true"}}})
		denied("run", err, "names.force")
		_, _, err = h.RunStream(t.Context(), c, api.RunRequest{Exec: api.ExecRequest{Argv: []string{"true"}}}, nil)
		denied("run stream of nobody", err, "names.allow_shared")
		for call, do := range h.calls(t.Context(), c) {
			for _, ref := range []string{api.RefByNaming, "group_1", mine.ID} {
				if err := do(ref, identity("1")); err != nil {
					t.Errorf("%s: %s in %s: %v", c.Tenant, call, ref, err)
				}
			}
			denied(call+" of nobody", do(mine.ID, api.Naming{}), "names.allow_shared")
			// What there is, what there never was and what another has are the same.
			for _, ref := range []string{"old", old.ID, "never", "sb-0000000000000000", "group_2"} {
				denied(call+" in "+ref, do(ref, identity("1")), "names.force")
			}
			denied(call+" by another identity", do(mine.ID, identity("2")), "names.force")
		}
	}
}

// TestExplainKnowsNames of execs.
func TestExplainKnowsNames(t *testing.T) {
	h := newFixture(t)
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{Naming: identity("1")}, nil); err != nil {
		t.Fatal(err)
	}
	rules := rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Names: rules.NameRule{Force: true}}
	if err := h.UseRules(t.Context(), rules, "digest"); err != nil {
		t.Fatal(err)
	}
	for id, rule := range map[string]string{"1": "", "2": "names.force"} {
		a, err := h.ExplainPolicy(t.Context(), operator, api.PolicyQuestion{
			Verb: "exec", Sandbox: "group_1", Exec: &api.ExecRequest{Naming: identity(id), Argv: []string{"true"}},
		})
		if err != nil || a.Allowed != (rule == "") || rule != "" && a.Refusal.Rule != rule {
			t.Errorf("identity %s: %+v, %v", id, a, err)
		}
	}
}

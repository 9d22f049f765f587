package policy_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// TestProfileSuspends: a profile has its sandboxes suspended where that is possible and nothing else was requested.
func TestProfileSuspends(t *testing.T) {
	f := facts()
	f.Engines[0].Suspends = true
	cannot := facts()
	idle := api.Limits{IdleMS: 60_000}
	const on = "profiles: {agent: {on_expiry: suspend}}"
	for name, c := range map[string]struct {
		text  string
		spec  api.SandboxSpec
		facts policy.Facts
		want  api.Expiry
	}{
		"idle":                 {on, api.SandboxSpec{Limits: idle}, f, api.ExpirySuspend},
		"lifetime":             {on, api.SandboxSpec{Limits: api.Limits{LifetimeMS: 60_000}}, f, api.ExpirySuspend},
		"idle of the profile":  {"profiles: {agent: {on_expiry: suspend, defaults: {idle: 1m}}}", api.SandboxSpec{}, f, api.ExpirySuspend},
		"stop is requested":    {on, api.SandboxSpec{Limits: idle, OnExpiry: api.ExpiryStop}, f, api.ExpiryStop},
		"neither":              {on, api.SandboxSpec{}, f, ""},
		"transient":            {on, api.SandboxSpec{Limits: idle, Transient: true}, f, ""},
		"engine":               {on, api.SandboxSpec{Limits: idle}, cannot, ""},
		"stop of the profile":  {"profiles: {agent: {on_expiry: stop}}", api.SandboxSpec{Limits: idle}, f, ""},
		"of another profile":   {"profiles: {other: {on_expiry: suspend}}", api.SandboxSpec{Limits: idle}, f, ""},
		"none of any profile":  {"version: 1", api.SandboxSpec{Limits: idle}, f, ""},
		"profile that extends": {"profiles: {other: {on_expiry: suspend}}", api.SandboxSpec{Profile: "other", Limits: idle}, f, api.ExpirySuspend},
	} {
		p, err := policy.Decide(policy.Request{Spec: c.spec, Facts: c.facts}, tenant, mustParse(t, c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := p.Spec(); got.OnExpiry != c.want || got.AutoResume != (c.want == api.ExpirySuspend) {
			t.Errorf("%s: on_expiry %q, auto_resume %v, want %q", name, got.OnExpiry, got.AutoResume, c.want)
		}
		again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: c.facts}, tenant, mustParse(t, c.text))
		if err != nil || again.Spec().OnExpiry != p.Spec().OnExpiry {
			t.Errorf("%s: decided again: %+v, %v", name, again.Spec(), err)
		}
	}
}

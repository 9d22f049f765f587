//go:build linux

package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// TestSetupHasItsOwnNetwork: what it may reach is in force until it is done, and then what
// the sandbox itself says, confirmed.
func TestSetupHasItsOwnNetwork(t *testing.T) {
	h, dir := newFixture(t), t.TempDir()
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	h.networkedRules(t, "egress: {allow: ['*.a.org', b.org], deny: [no.a.org]}")
	for name, tc := range map[string]struct {
		run         api.SandboxSpec
		network     string
		allow, deny int
	}{
		"none": {api.SandboxSpec{}, "none", 0, 0},
		"less": {api.SandboxSpec{Egress: &api.Egress{Allow: []string{"b.org"}, Limits: api.EgressLimits{Connections: 3}}}, "on", 1, 1},
	} {
		spec := in(dir)
		spec.Spec = &tc.run
		spec.Setup = sh("true")
		spec.Setup.Egress = &api.Egress{Allow: []string{"x.a.org", "b.org"}}
		spec.Handlers = []api.JobHandler{{Name: "look", Wait: true}}
		p, err := h.StartJob(t.Context(), red, spec)
		if err != nil {
			t.Fatal(err)
		}
		h.reaches(t, p.ID, api.PhaseHandlers)
		r, err := h.Egress(t.Context(), red, h.sandboxOf(t, p.ID))
		if err != nil || r.Network != tc.network || len(r.Egress.Allow) != tc.allow || r.Generation != 1 || r.Applied != 1 {
			t.Errorf("%s: in force is %+v, %v", name, r, err)
		}
		if _, err := h.ContinueJob(t.Context(), red, p.ID, api.JobContinue{Handler: "look"}); err != nil {
			t.Fatal(err)
		}
		p, err = h.FollowJob(t.Context(), red, p.ID, func(api.JobStep) error { return nil })
		if err != nil || p.State != api.JobSucceeded || p.Phases[2].Phase != api.PhaseNetwork || p.Phases[2].Egress.Applied != 1 || p.Sandbox.Network != tc.network {
			t.Errorf("%s: %s %+v %+v, %v", name, p.State, p.Failure, p.Phases, err)
		}
	}
	h.holds(t, `"change_egress"`, `"generation":"1"`)
	spec := in(dir)
	spec.Setup = sh("true")
	spec.Setup.Egress = &api.Egress{Allow: []string{"c.org"}}
	_, err := h.StartJob(t.Context(), red, spec)
	if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != "egress.allow" {
		t.Errorf("%+v", e)
	}
	h.networkedRules(t, "profiles: {closed: {extends: default, network: none, locked: [network]}}\negress: {allow: [b.org]}")
	spec.Spec.Profile, spec.Setup.Egress.Allow = "closed", []string{"b.org"}
	_, err = h.StartJob(t.Context(), red, spec)
	if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != "profiles.closed.locked.network" {
		t.Errorf("%+v", e)
	}
}

func TestReplaceEgress(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	h.networked(t, red, "egress: {allow: ['*.a.org', b.org]}")
	if _, err := h.ChangeEgress(t.Context(), operator, "box", api.EgressChange{}); err == nil {
		t.Error("nothing is a change")
	}
	on := func(allow ...string) api.EgressPolicy {
		return api.EgressPolicy{Egress: &api.Egress{Allow: allow}}
	}
	put := func(c core.Caller, p api.EgressPolicy) (api.EgressRules, error) {
		return h.ReplaceEgress(t.Context(), c, "box", p)
	}
	r, err := put(red, on("x.a.org"))
	if err != nil || r.Network != "on" || len(r.Egress.Allow) != 1 || r.Generation != 1 || r.Applied != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err = put(red, on("c.org")); errorOf(t, err).Rule != "egress.allow" {
		t.Errorf("%v", err)
	}
	if r, err = put(red, api.EgressPolicy{Network: "none"}); err != nil || r.Network != "none" || r.Applied != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if sb, err := h.Get(t.Context(), red, "box"); err != nil || sb.Network != "none" || sb.Egress != nil {
		t.Errorf("%+v, %v", sb, err)
	}
	if _, err := h.ChangeEgress(t.Context(), red, "box", api.EgressChange{Allow: []string{"x.a.org"}}); errorOf(t, err).Code != api.CodeState {
		t.Errorf("%v", err)
	}
	if r, err = put(red, on("b.org")); err != nil || r.Network != "on" || r.Generation != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := put(red, api.EgressPolicy{Network: "none", Egress: &api.Egress{}}); errorOf(t, err).Field != "egress" {
		t.Errorf("%v", err)
	}
	h.holds(t, `"replace":"true"`)
}

// TestAJobEndsWithItsKey while other callers remain.
func TestAJobEndsWithItsKey(t *testing.T) {
	h := newFixture(t)
	live, revoke := context.WithCancelCause(t.Context())
	spec := in("/")
	spec.Run = *sh("true", "sleep 1000")
	p, err := h.StartJob(core.WithLive(t.Context(), live), operator, spec)
	if err != nil {
		t.Fatal(err)
	}
	h.reaches(t, p.ID, api.PhaseRun)
	revoke(api.Errorf(api.CodeUnauthenticated, "the key was revoked"))
	p, err = h.FollowJob(t.Context(), operator, p.ID, func(api.JobStep) error { return nil })
	if err != nil || p.State != api.JobCanceled || p.Failure.Code != api.CodeUnauthenticated {
		t.Errorf("%s %+v, %v", p.State, p.Failure, err)
	}
	h.emptyFixture(t)
}

// TestAFailedSetupIsLeftToBeLookedAt, and goes when the job is cancelled.
func TestAFailedSetupIsLeftToBeLookedAt(t *testing.T) {
	h := newFixture(t)
	spec := in("/")
	spec.Setup, spec.InspectFailedMS = sh("exit 1"), 3_600_000
	p := h.ended(t, operator, spec)
	if p.State != api.JobFailed || p.InspectUntil == nil || p.ReadyAt != nil {
		t.Fatalf("%+v", p)
	}
	if _, err := h.Get(t.Context(), operator, p.Sandbox.ID); err != nil {
		t.Errorf("the sandbox is gone: %v", err)
	}
	if got, err := h.CancelJob(t.Context(), operator, p.ID); err != nil || got.State != api.JobFailed || got.InspectUntil != nil {
		t.Errorf("%+v, %v", got, err)
	}
	h.emptyFixture(t)
	spec.InspectFailedMS = 1
	p = h.ended(t, operator, spec)
	for {
		_, err := h.Get(t.Context(), operator, p.Sandbox.ID)
		if errors.Is(err, api.ErrNotFound) {
			break
		}
		if err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

//go:build linux

package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// networked is a sandbox of a tenant that may reach what the rules say.
func (h *fixture) networked(t *testing.T, c core.Caller, rules string) api.Sandbox {
	t.Helper()
	h.networkedRules(t, rules)
	sb, err := h.Create(t.Context(), c, api.SandboxSpec{Name: "box", Network: "on"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestEgressOfATenant(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	sb := h.networked(t, red, "egress: {allow: ['*.a.org'], deny: [no.a.org]}")
	r, err := h.ChangeEgress(t.Context(), red, "box", api.EgressChange{Allow: []string{"x.a.org"}, ForMS: 60_000})
	if err != nil || len(r.Temporary) != 1 || r.Egress.Allow[0] != "x.a.org" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got, err := h.Get(t.Context(), red, "box"); err != nil || len(got.Egress.Allow) != 1 {
		t.Errorf("the record has %+v, %v", got.Egress, err)
	}
	for text, rule := range map[string]string{"b.org": "egress.allow", "no.a.org": "egress.deny:no.a.org"} {
		_, err := h.ChangeEgress(t.Context(), red, sb.ID, api.EgressChange{Allow: []string{text}})
		if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != rule {
			t.Errorf("%s: %+v", text, e)
		}
	}
	// The operator lets out what the tenant could not; the tenant cannot lift what the
	// operator put there.
	if _, err := h.ChangeEgress(t.Context(), operator, sb.ID, api.EgressChange{Allow: []string{"b.org"}, Deny: []string{"y.a.org"}}); err != nil {
		t.Fatal(err)
	}
	_, err = h.ChangeEgress(t.Context(), red, sb.ID, api.EgressChange{Remove: []string{"deny y.a.org"}})
	if e := errorOf(t, err); e.Rule != "operator_only" {
		t.Errorf("%+v", e)
	}
	if r, err = h.Egress(t.Context(), red, "box"); err != nil || len(r.Egress.Allow) != 2 || len(r.Operator) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for verb, do := range map[string]func() error{
		"egress": func() error { _, err := h.Egress(t.Context(), blue, sb.ID); return err },
		"change": func() error {
			_, err := h.ChangeEgress(t.Context(), blue, sb.ID, api.EgressChange{Allow: []string{"x.a.org"}})
			return err
		},
		"log": func() error {
			return h.EgressLog(t.Context(), blue, sb.ID, api.EgressLogOptions{}, func(api.EgressRecord) error { return nil })
		},
		"approvals": func() error {
			_, err := h.Approvals(t.Context(), blue, api.ApprovalOptions{Sandbox: sb.ID})
			return err
		},
	} {
		if e := errorOf(t, do()); e.Code != api.CodeNotFound {
			t.Errorf("%s of a foreign sandbox: %+v", verb, e)
		}
	}
	// Other rules of the operator's hold at once in what runs.
	h.networkedRules(t, "egress: {deny: [b.org, x.a.org]}")
	if r, err = h.Egress(t.Context(), red, "box"); err != nil || len(r.Operator) != 3 || r.Operator[0] != "egress.deny:b.org" {
		t.Errorf("%+v, %v", r, err)
	}
	// The log is written behind the answer.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o, seen := api.EgressLogOptions{Kinds: []api.EgressKind{api.EgressChanged}, Follow: true}, errors.New("seen")
	if err := h.EgressLog(ctx, red, "box", o, func(api.EgressRecord) error { return seen }); !errors.Is(err, seen) {
		t.Errorf("no change is in the log: %v", err)
	}
}

func (h *fixture) networkedRules(t *testing.T, text string) {
	t.Helper()
	r, err := rules.ParseRules([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Engine, r.MinTier = fake.Name, api.TierNone
	if err := h.UseRules(t.Context(), r, "def"); err != nil {
		t.Fatal(err)
	}
}

func TestApprovals(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	sb := h.networked(t, red, "egress: {allow: ['*.a.org']}")
	out := make(chan bool, 1)
	ask := func(rule string) api.Approval {
		t.Helper()
		go func() {
			out <- h.approvals.Ask(t.Context(), approval.Question{Tenant: "red", Sandbox: sb.ID, SandboxName: "box", Name: rule, Port: 443, Rule: rule})
		}()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			l, err := h.Approvals(t.Context(), red, api.ApprovalOptions{Sandbox: "box"})
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Approvals) == 1 {
				return l.Approvals[0]
			}
		}
		t.Fatal("nothing is asked")
		return api.Approval{}
	}
	a := ask("x.a.org")
	if l, err := h.Approvals(t.Context(), blue, api.ApprovalOptions{}); err != nil || len(l.Approvals) != 0 {
		t.Errorf("another tenant sees %+v, %v", l, err)
	}
	_, err := h.AnswerApproval(t.Context(), blue, a.ID, api.ApprovalAnswer{Approve: true})
	if e := errorOf(t, err); e.Code != api.CodeNotFound {
		t.Errorf("%+v", e)
	}
	if a, err = h.AnswerApproval(t.Context(), red, a.ID, api.ApprovalAnswer{Approve: true, ForMS: 1000}); err != nil || a.State != api.ApprovalApproved || !<-out {
		t.Fatalf("%+v, %v", a, err)
	}
	if r, err := h.Egress(t.Context(), red, "box"); err != nil || len(r.Temporary) != 1 || r.Temporary[0].Rule != "x.a.org" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = h.AnswerApproval(t.Context(), red, a.ID, api.ApprovalAnswer{})
	if e := errorOf(t, err); e.Code != api.CodeState {
		t.Errorf("%+v", e)
	}
	// What the tenant could not ask for it cannot approve, and the question waits on.
	a = ask("b.org")
	_, err = h.AnswerApproval(t.Context(), red, a.ID, api.ApprovalAnswer{Approve: true})
	if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != "egress.allow" {
		t.Errorf("%+v", e)
	}
	_, err = h.AnswerApproval(t.Context(), operator, a.ID, api.ApprovalAnswer{ForMS: 5})
	if e := errorOf(t, err); e.Code != api.CodeInvalid {
		t.Errorf("%+v", e)
	}
	if a, err = h.AnswerApproval(t.Context(), operator, a.ID, api.ApprovalAnswer{}); err != nil || a.State != api.ApprovalRejected || <-out || a.AnsweredBy == "" {
		t.Errorf("%+v, %v", a, err)
	}
}

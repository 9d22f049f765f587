//go:build linux

package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// records are the lines of the audit log as "verb outcome" and their details.
func (h *fixture) records(t *testing.T) (lines []string) {
	t.Helper()
	err := h.Audit(t.Context(), operator, api.AuditOptions{}, func(line []byte) error {
		var r api.AuditRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %v", r.Verb, r.Outcome, r.Code, r.Details))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func holds(lines []string, parts ...string) bool {
	for _, l := range lines {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(l, p)
		}
		if all {
			return true
		}
	}
	return false
}

// A create is repeated by its key, by any caller of the tenant and no other.
func TestCreateByKey(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	other, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	spec := api.SandboxSpec{Name: "box", IdempotencyKey: "k", Env: map[string]string{"A": "1", "B": "2"}}
	one, err := h.Create(t.Context(), red, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]core.Caller{"the same": red, "another of the tenant": other} {
		if sb, err := h.Create(t.Context(), c, spec, nil); err != nil || sb.ID != one.ID {
			t.Errorf("%s: %s, %v; want %s", name, sb.ID, err, one.ID)
		}
	}
	if sb, err := h.Create(t.Context(), blue, spec, nil); err != nil || sb.ID == one.ID {
		t.Errorf("another tenant's: %s, %v", sb.ID, err)
	}
	changed := spec
	changed.Env = map[string]string{"A": "1", "B": "3"}
	if _, err := h.Create(t.Context(), red, changed, nil); errorOf(t, err).Code != api.CodeConflict {
		t.Errorf("another request: %v", err)
	}
	// A quota is no reason to refuse what is there.
	if err := h.UseRules(t.Context(), rules.Rules{Engine: fake.Name, MinTier: api.TierNone, MaxSandboxes: 1}, "one"); err != nil {
		t.Fatal(err)
	}
	if sb, err := h.Create(t.Context(), red, spec, nil); err != nil || sb.ID != one.ID {
		t.Errorf("with a full quota: %s, %v", sb.ID, err)
	}
	for _, key := range []string{"a b", "é", strings.Repeat("x", 256)} {
		bad := spec
		bad.IdempotencyKey = key
		if _, err := h.Create(t.Context(), red, bad, nil); errorOf(t, err).Field != "idempotency_key" {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if _, err := h.Run(t.Context(), red, api.RunRequest{Spec: spec, Exec: api.ExecRequest{Shell: "true"}}); errorOf(t, err).Field != "spec.idempotency_key" {
		t.Errorf("a run with a key: %v", err)
	}
	gone, err := h.DeleteKeyed(t.Context(), red, "k")
	if err != nil || gone.ID != one.ID || gone.State != api.StateDeleted {
		t.Errorf("delete: %+v, %v", gone, err)
	}
	if _, err := h.Create(t.Context(), red, spec, nil); errorOf(t, err).TerminalReason != api.EndedDeleted {
		t.Errorf("a create after its delete: %v", err)
	}
	if _, err := h.Get(t.Context(), blue, "box"); err != nil {
		t.Errorf("another tenant's sandbox of that key: %v", err)
	}
	lines := h.records(t)
	for _, want := range [][]string{
		{"create granted", "idempotency_key:k"}, {"create ok", "repeated:true"}, {"create failed", "conflict"},
		{"remove ok", "idempotency_key:k"},
	} {
		if !holds(lines, want...) {
			t.Errorf("no record has %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

// What a batch asks for is done each for itself.
func TestBatches(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	made, err := h.CreateMany(t.Context(), red, api.BatchCreate{Specs: []api.SandboxSpec{
		{Name: "a", IdempotencyKey: "k", Labels: map[string]string{"run": "1"}}, {Name: "NO"}, {Labels: map[string]string{"run": "1"}},
	}, Count: 2})
	if err != nil || len(made.Succeeded) != 4 || len(made.Failed) != 2 {
		t.Fatalf("made %+v, %v", made, err)
	}
	if a := made.Succeeded; a[0].Name != "a" || a[1].Name != "a-2" || a[0].IdempotencyKey != "k" || a[1].IdempotencyKey != "k-2" {
		t.Errorf("made %q and %q", a[0].Name, a[1].Name)
	}
	if f := made.Failed; f[0].Index != 2 || f[1].Index != 3 || f[0].Error.Field != "name" {
		t.Errorf("failed %+v", made.Failed)
	}
	id := made.Succeeded[0].ID
	if got, err := h.StatusMany(t.Context(), red, api.BatchSelect{IDs: []string{id, "nobody", "a-2"}}); err != nil || len(got.Succeeded) != 2 || len(got.Failed) != 1 || got.Failed[0].ID != "nobody" || got.Failed[0].Index != 1 {
		t.Errorf("status: %+v, %v", got, err)
	}
	if got, err := h.StatusMany(t.Context(), blue, api.BatchSelect{IDs: []string{id}}); err != nil || len(got.Failed) != 1 || !errors.Is(got.Failed[0].Error, api.ErrNotFound) {
		t.Errorf("another tenant's status: %+v, %v", got, err)
	}
	many := make([]string, api.MaxBatch+1)
	for name, err := range map[string]error{
		"too many ids": func() error { _, err := h.StatusMany(t.Context(), red, api.BatchSelect{IDs: many}); return err }(),
		"too many creates": func() error {
			_, err := h.CreateMany(t.Context(), red, api.BatchCreate{Specs: make([]api.SandboxSpec, 2), Count: 257})
			return err
		}(),
		"overflow": func() error {
			_, err := h.CreateMany(t.Context(), red, api.BatchCreate{Specs: make([]api.SandboxSpec, 2), Count: 1 << 62})
			return err
		}(),
		"nothing to make": func() error { _, err := h.CreateMany(t.Context(), red, api.BatchCreate{}); return err }(),
		"nothing to go":   func() error { _, err := h.DeleteMany(t.Context(), red, api.BatchSelect{}); return err }(),
		"status by label": func() error {
			_, err := h.StatusMany(t.Context(), red, api.BatchSelect{Labels: map[string]string{"run": "1"}})
			return err
		}(),
	} {
		if code := api.CodeOf(err); code != api.CodeTooLarge && code != api.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An operator's labels reach into no tenant.
	if got, err := h.DeleteMany(t.Context(), operator, api.BatchSelect{Labels: map[string]string{"run": "1"}}); err != nil || len(got.Succeeded)+len(got.Failed) != 0 {
		t.Errorf("the operator's: %+v, %v", got, err)
	}
	gone, err := h.DeleteMany(t.Context(), red, api.BatchSelect{IDs: []string{id, "nobody", id}, Labels: map[string]string{"run": "1"}, IdempotencyKeys: []string{"never"}})
	if err != nil || len(gone.Succeeded) != 5 || len(gone.Failed) != 1 || gone.Failed[0].ID != "nobody" {
		t.Errorf("gone: %+v, %v", gone, err)
	}
	if l, err := h.List(t.Context(), red, api.ListOptions{}); err != nil || len(l.Sandboxes) != 0 {
		t.Errorf("left: %+v, %v", l, err)
	}
}

// Who leaves before the answer of a batch leaves nothing behind that it does not
// know, and finds what it has a key for.
func TestBatchWhoseCallerLeaves(t *testing.T) {
	h := newFixture(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ready, blocked := make(chan struct{}, 8), make(chan struct{})
	h.machine.SetFaults(fake.Faults{At: func(s fake.Step) {
		if s == fake.StepReady {
			ready <- struct{}{}
			if len(ready) == 2 {
				close(blocked)
				<-ctx.Done()
			}
		}
	}})
	done := make(chan error, 1)
	go func() {
		_, err := h.CreateMany(ctx, operator, api.BatchCreate{Specs: []api.SandboxSpec{{}, {}}})
		done <- err
	}()
	<-blocked
	leave()
	if err := <-done; api.CodeOf(err) != api.CodeCanceled {
		t.Errorf("the batch: %v", err)
	}
	h.machine.SetFaults(fake.Faults{})
	if l, err := h.List(t.Context(), operator, api.ListOptions{}); err != nil || len(l.Sandboxes) != 0 {
		t.Errorf("left: %+v, %v", l, err)
	}
}

// A sandbox lives longer when it is asked for, up to the ceiling of its profile.
func TestExtend(t *testing.T) {
	h := newFixture(t)
	hour := rules.Duration(time.Hour)
	if err := h.UseRules(t.Context(), rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Profiles: map[string]rules.ProfileRule{
		"short": {Ceilings: rules.LimitRule{Lifetime: &hour}},
	}}, "short"); err != nil {
		t.Fatal(err)
	}
	sb, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box", Profile: "short", Limits: api.Limits{LifetimeMS: 60_000}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	longer, err := h.Extend(t.Context(), operator, "box", api.Extension{LifetimeMS: 600_000})
	if err != nil || longer.ExpiresAt == nil || longer.ExpiresAt.Sub(*sb.ExpiresAt) < 9*time.Minute {
		t.Errorf("extended from %s to %v, %v", sb.ExpiresAt, longer.ExpiresAt, err)
	}
	if same, err := h.Extend(t.Context(), operator, "box", api.Extension{LifetimeMS: 1000}); err != nil || !same.ExpiresAt.Equal(*longer.ExpiresAt) {
		t.Errorf("an extension to less: %v, %v", same.ExpiresAt, err)
	}
	_, err = h.Extend(t.Context(), operator, "box", api.Extension{LifetimeMS: 2 * 3_600_000})
	if e := errorOf(t, err); e.Code != api.CodeDenied || !strings.Contains(e.Rule, "short") || e.Field != "lifetime_ms" {
		t.Errorf("over the ceiling: %+v", e)
	}
	for _, ms := range []int64{0, -1, 5} {
		if _, err := h.Extend(t.Context(), operator, "box", api.Extension{LifetimeMS: ms}); errorOf(t, err).Field != "lifetime_ms" {
			t.Errorf("%d: %v", ms, err)
		}
	}
	if _, err := h.Stop(t.Context(), operator, "box", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Extend(t.Context(), operator, "box", api.Extension{LifetimeMS: 60_000}); errorOf(t, err).TerminalReason != api.EndedStopped {
		t.Errorf("of one that has ended: %v", err)
	}
	if lines := h.records(t); !holds(lines, "extend ok", "lifetime_ms:600000") || !holds(lines, "extend refused", "denied") {
		t.Errorf("records:\n%s", strings.Join(lines, "\n"))
	}
}

// TestARefusedCommitEndsNothing: a sandbox without a layer goes on when a commit or a rollback of it
// is refused.
func TestARefusedCommitEndsNothing(t *testing.T) {
	h := newFixture(t)
	sb, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box", Cwd: "/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, settle := range map[string]func(context.Context, core.Caller, string) (api.Diff, error){
		"commit": h.CommitWorkspace, "rollback": h.RollbackWorkspace,
	} {
		if _, err := settle(t.Context(), operator, sb.ID); api.CodeOf(err) != api.CodeState {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := h.sh(t, "true"); err != nil {
			t.Errorf("after the %s: %v", name, err)
		}
	}
}

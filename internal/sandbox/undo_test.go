//go:build linux

package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// An extension that cannot be put on record has no effect: the sandbox keeps its lifetime.
func TestFailedExtend(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Limits: api.Limits{LifetimeMS: time.Hour.Milliseconds()}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := m.Get(operator, "x")
	if err != nil || before.ExpiresAt == nil {
		t.Fatalf("a sandbox with a lifetime: %+v, %v", before, err)
	}
	record := filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "sandbox.json")
	if err := os.Rename(record, record+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(record, "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	permit, err := policy.DecideExtend(api.Extension{LifetimeMS: (3 * time.Hour).Milliseconds()}, policy.SettingsOf(sb), operator, testRules)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Extend(operator, "x", permit); api.CodeOf(err) != api.CodeInternal {
		t.Errorf("extend: %v, want %s", err, api.CodeInternal)
	}
	after, err := m.Get(operator, "x")
	if err != nil || after.Limits.LifetimeMS != before.Limits.LifetimeMS || !after.ExpiresAt.Equal(*before.ExpiresAt) {
		t.Errorf("after an extend that failed: %d ms until %v, %v; before %d until %v", after.Limits.LifetimeMS, after.ExpiresAt, err, before.Limits.LifetimeMS, before.ExpiresAt)
	}
}

// A sandbox that was made although the last who waited for it had gone is removed, and its
// key is free.
func TestUnwantedSandboxIsRemoved(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	begun, letGo := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := m.Keyed(ctx, operator, "k", "d", func(ctx context.Context) (api.Sandbox, error) {
			close(begun)
			<-letGo
			// It does not look at its context any more: it was made at that moment.
			return m.Create(context.WithoutCancel(ctx), w.permit(api.SandboxSpec{Name: "x", IdempotencyKey: "k"}), nil)
		})
		done <- err
	}()
	<-begun
	cancel()
	if err := <-done; api.CodeOf(err) != api.CodeCanceled {
		t.Errorf("who left: %v, want %s", err, api.CodeCanceled)
	}
	close(letGo)
	// The next with the key waits until the one before is undone, and makes another.
	sb, made, err := m.Keyed(t.Context(), operator, "k", "d", func(ctx context.Context) (api.Sandbox, error) {
		if left := w.machine.Left(); len(left) != 0 {
			t.Errorf("instances that nobody wants: %v", left)
		}
		return m.Create(ctx, w.permit(api.SandboxSpec{Name: "x", IdempotencyKey: "k"}), nil)
	})
	if err != nil || !made || sb.State != api.StateRunning {
		t.Errorf("a create with the key: %+v, %v, %v", sb, made, err)
	}
}

//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/test/longtest"
)

// keyed creates with an idempotency key, as core does.
func (w *fixture) keyed(ctx context.Context, m *sandbox.Manager, key, digest string) (api.Sandbox, bool, error) {
	permit := w.permit(api.SandboxSpec{IdempotencyKey: key})
	return m.Keyed(ctx, operator, key, digest, func(ctx context.Context) (api.Sandbox, error) {
		return m.Create(ctx, permit, nil)
	})
}

func wantDeletedError(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeConflict || e.TerminalReason != api.EndedDeleted || e.Retryable {
		t.Errorf("the error is %+v, want a conflict that says deleted", err)
	}
}

// One key is one sandbox, for all who ask at once and over a restart; another
// request with it is refused; when the sandbox is gone, nothing comes of the key.
func TestOneSandboxForOneKey(t *testing.T) {
	w := newFixture(t)
	first := w.manager(false)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	mades := make([]bool, 8)
	for i := range ids {
		wg.Go(func() {
			sb, made, err := w.keyed(t.Context(), first, "k", "d")
			if err != nil {
				t.Error(err)
			}
			ids[i], mades[i] = sb.ID, made
		})
	}
	wg.Wait()
	made := 0
	for i, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("sandboxes %v", ids)
		}
		if mades[i] {
			made++
		}
	}
	if n := len(w.machine.Plans()); n != 1 || made != 1 {
		t.Errorf("%d were made, by %d callers", n, made)
	}
	if _, _, err := w.keyed(t.Context(), first, "k", "other"); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another request with the key: %v", err)
	}
	if other, _, err := w.keyed(t.Context(), first, "k2", "d"); err != nil || other.ID == ids[0] {
		t.Errorf("another key: %s, %v", other.ID, err)
	}
	sandbox.Crash(first)
	second := w.manager(false)
	sb, again, err := w.keyed(t.Context(), second, "k", "d")
	if err != nil || again || sb.ID != ids[0] || sb.IdempotencyKey != "k" {
		t.Errorf("after a restart: %s, %v, %v; want %s", sb.ID, again, err, ids[0])
	}
	if _, _, err := w.keyed(t.Context(), second, "k", "other"); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another request after a restart: %v", err)
	}
	if _, err := second.Stop(t.Context(), operator, sb.ID, nil); err != nil {
		t.Fatal(err)
	}
	if ended, _, err := w.keyed(t.Context(), second, "k", "d"); err != nil || ended.ID != sb.ID || ended.State != api.StateStopped {
		t.Errorf("of one that has ended: %+v, %v", ended, err)
	}
	if gone, err := second.DeleteKeyed(t.Context(), operator, "k"); err != nil || gone.ID != sb.ID || gone.State != api.StateDeleted || gone.TerminalReason != api.EndedStopped {
		t.Errorf("delete by key: %+v, %v", gone, err)
	}
	if err := second.Remove(t.Context(), operator, func() string { o, _, _ := w.keyed(t.Context(), second, "k2", "d"); return o.ID }()); err != nil {
		t.Error(err)
	}
	third := w.manager(false)
	for _, m := range []*sandbox.Manager{second, third} {
		if _, _, err := w.keyed(t.Context(), m, "k", "d"); api.CodeOf(err) != api.CodeConflict {
			t.Errorf("of one that was removed: %v", err)
		}
		_, _, err := w.keyed(t.Context(), m, "k2", "d")
		wantDeletedError(t, err)
		if gone, err := m.DeleteKeyed(t.Context(), operator, "k"); err != nil || gone.ID != sb.ID {
			t.Errorf("another delete by key: %+v, %v", gone, err)
		}
	}
	w.nothingLeft(third)
}

// stopAtEngine makes the first create stop before its engine step until it is let go.
func (w *fixture) stopAtEngine() (reached chan struct{}, letGo func()) {
	reached, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.trap = func(ctx context.Context, point string) error {
		if point != "before engine" {
			return nil
		}
		var err error
		once.Do(func() {
			close(reached)
			select {
			case <-gate:
			case <-ctx.Done():
				err = ctx.Err()
			}
		})
		return err
	}
	return reached, sync.OnceFunc(func() { close(gate) })
}

// A waiter that leaves leaves the others theirs; when the last has left, nothing is
// left, and the key is free.
func TestCreationBelongsToItsWaiters(t *testing.T) {
	noGoroutinesLeft(t)
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprintf("all leave is %v", all), func(t *testing.T) {
			w := newFixture(t)
			reached, letGo := w.stopAtEngine()
			defer letGo()
			m := w.manager(false)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			first, second := make(chan error, 1), make(chan error, 1)
			secondCtx := t.Context()
			if all {
				secondCtx = ctx
			}
			go func() { _, _, err := w.keyed(ctx, m, "k", "d"); first <- err }()
			<-reached
			go func() { _, _, err := w.keyed(secondCtx, m, "k", "d"); second <- err }()
			eventually(t, "both wait", func() bool { return sandbox.Waiters(m, operator.Tenant, "k") == 2 })
			leave()
			if err := <-first; api.CodeOf(err) != api.CodeCanceled {
				t.Errorf("who left got %v", err)
			}
			if !all {
				letGo()
				if err := <-second; err != nil {
					t.Errorf("who stayed got %v", err)
				}
				if sb, made, err := w.keyed(t.Context(), m, "k", "d"); err != nil || made || sb.State != api.StateRunning {
					t.Errorf("the sandbox: %+v, %v", sb, err)
				}
				return
			}
			<-second
			eventually(t, "nothing is left", func() bool { return len(states(m)) == 0 && len(w.machine.Left()) == 0 })
			w.nothingLeft(m)
			if sb, made, err := w.keyed(t.Context(), m, "k", "d"); err != nil || !made || sb.State != api.StateRunning {
				t.Errorf("a create with the free key: %+v, %v, %v", sb, made, err)
			}
		})
	}
}

// A delete that overtakes its create wins: whether that is under way or is yet to
// come, also over a restart.
func TestDeleteBeforeItsCreate(t *testing.T) {
	noGoroutinesLeft(t)
	w := newFixture(t)
	reached, letGo := w.stopAtEngine()
	m := w.manager(false)
	done := make(chan error, 1)
	go func() { _, _, err := w.keyed(t.Context(), m, "k", "d"); done <- err }()
	<-reached
	gone, err := m.DeleteKeyed(t.Context(), operator, "k")
	if err != nil || gone.State != api.StateDeleted || gone.IdempotencyKey != "k" {
		t.Errorf("delete of what is being created: %+v, %v", gone, err)
	}
	wantDeletedError(t, <-done)
	letGo()
	w.nothingLeft(m)
	if _, err := m.DeleteKeyed(t.Context(), operator, "later"); err != nil {
		t.Errorf("delete of what was never created: %v", err)
	}
	sandbox.Crash(m)
	w.trap = nil
	second := w.manager(false)
	for _, key := range []string{"k", "later"} {
		_, _, err := w.keyed(t.Context(), second, key, "d")
		wantDeletedError(t, err)
	}
	if n := len(w.machine.Plans()); n != 0 {
		t.Errorf("%d were made", n)
	}
	w.nothingLeft(second)
}

// Deleting a sandbox by its id or name while it is being created undoes the
// creation, at whatever point that is.
func TestDeleteDuringItsCreate(t *testing.T) {
	longtest.Skip(t, "it makes a sandbox for each step")
	noGoroutinesLeft(t)
	for _, point := range createPoints(t) {
		t.Run(point, func(t *testing.T) {
			w := newFixture(t)
			reached, deleted := make(chan struct{}), make(chan error, 1)
			var once sync.Once
			w.trap = func(ctx context.Context, p string) error {
				if p == point {
					once.Do(func() {
						close(reached)
						if point != "after record" { // which nothing cancels any more
							<-ctx.Done()
						}
					})
				}
				return nil
			}
			m := w.manager(false)
			created := make(chan error, 1)
			permit := w.permit(everything(t))
			go func() { _, err := m.Create(t.Context(), permit, nil); created <- err }()
			<-reached
			go func() { deleted <- m.Remove(t.Context(), operator, "x") }()
			if err := <-deleted; err != nil {
				t.Errorf("delete: %v", err)
			}
			if err := <-created; point != "after record" {
				wantDeletedError(t, err)
			}
			w.nothingLeft(m)
			w.create(m, "x")
		})
	}
}

// A creation that fails leaves its key free.
func TestFailedCreateFreesItsKey(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.machine.SetFaults(fake.Faults{Create: map[fake.Step]error{fake.StepStart: errWanted}})
	if _, _, err := w.keyed(t.Context(), m, "k", "d"); err == nil {
		t.Fatal("a create that failed says nothing")
	}
	w.machine.SetFaults(fake.Faults{})
	if sb, made, err := w.keyed(t.Context(), m, "k", "another"); err != nil || !made || sb.State != api.StateRunning {
		t.Errorf("with the free key: %+v, %v", sb, err)
	}
}

// A burst is taken in and made a few at a time; no caller gets an error, and each is
// told how long it waited and how long it took.
func TestBurstOfCreates(t *testing.T) {
	n := 512
	if testing.Short() {
		n = 48
	}
	w := newFixture(t)
	w.admission = policy.Admission{Starting: 4}
	var mu sync.Mutex
	inside, most := 0, 0
	w.trap = func(_ context.Context, point string) error {
		mu.Lock()
		defer mu.Unlock()
		switch point {
		case "before directory":
			inside++
			most = max(most, inside)
		case "after record":
			inside--
		}
		return nil
	}
	m := w.manager(false)
	permit := w.permit(api.SandboxSpec{})
	begin := make(chan struct{})
	var wg sync.WaitGroup
	queued := 0
	for range n {
		wg.Go(func() {
			<-begin
			sb, err := m.Create(t.Context(), permit, nil)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if sb.QueueMS > 0 {
				queued++
			}
			mu.Unlock()
			if sb.StartMS <= 0 {
				t.Errorf("it took %d ms to start", sb.StartMS)
			}
			if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
	if most > 4 || queued < n/2 {
		t.Errorf("%d were made at once and %d of %d waited, want at most 4 and most of them", most, queued, n)
	}
	if starting, waiting := m.Starting(); starting != 0 || waiting != 0 {
		t.Errorf("%d start and %d wait in the end", starting, waiting)
	}
	w.nothingLeft(m)
}

// That a sandbox is removed is said when nothing is left of it, also where its tombstone
// is dug already: by its id, by its key and by who asks a second time.
func TestRemovedIsSaidWhenNothingIsLeft(t *testing.T) {
	w := newFixture(t)
	var mended atomic.Bool
	w.trap = func(_ context.Context, p string) error {
		if p == "after erase" && !mended.Load() {
			return errWanted
		}
		return nil
	}
	m := w.manager(false)
	sb, _, err := w.keyed(t.Context(), m, "k", "d")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := m.Delete(t.Context(), operator, sb.ID); err == nil {
			t.Error("a removal that failed says nothing")
		}
		if gone, ok := m.Removed(operator, sb.ID); ok {
			t.Errorf("what is still %s is said to be removed", gone.State)
		}
		if _, err := m.DeleteKeyed(t.Context(), operator, "k"); err == nil {
			t.Error("a removal by key that failed says nothing")
		}
	}
	mended.Store(true)
	eventually(t, "it is removed", func() bool { _, ok := m.Removed(operator, sb.ID); return ok })
	w.nothingLeft(m)
	if gone, err := m.DeleteKeyed(t.Context(), operator, "k"); err != nil || gone.ID != sb.ID {
		t.Errorf("a removal by key afterwards: %+v, %v", gone, err)
	}
}

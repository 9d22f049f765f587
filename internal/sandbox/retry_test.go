package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
)

// The fault table of deletes: what the engine does, and what a caller sees of it.
func TestDeletesThatFail(t *testing.T) {
	type step struct {
		after time.Duration
		// again deletes once more; refuse sets how many closes fail from then on.
		again  bool
		refuse int
	}
	for name, c := range map[string]struct {
		refuse int
		// err is whether the first delete fails, and took the most that it takes.
		err  bool
		took time.Duration
		then []step
		// attempts is how many there are before it is gone; 0 is not looked at.
		attempts int
	}{
		"succeeds at once":            {refuse: 0, took: 0, attempts: 1},
		"fails once":                  {refuse: 1, took: 600 * time.Millisecond, attempts: 2},
		"fails five times":            {refuse: 5, took: 19 * time.Second, attempts: 6},
		"fails six times":             {refuse: 6, err: true, took: 19 * time.Second, then: []step{{after: 20 * time.Second}}, attempts: 7},
		"always, until it recovers":   {refuse: 1 << 20, err: true, took: 19 * time.Second, then: []step{{after: 10 * time.Minute, refuse: -1}, {after: 40 * time.Second}}},
		"always, and another recover": {refuse: 1 << 20, err: true, took: 19 * time.Second, then: []step{{after: time.Second, refuse: -1}, {again: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.put("x", true, nil)
				inst := b.engine.live["x"]
				inst.refuse = c.refuse
				m := b.daemon(retention.Rule{})
				synctest.Wait()
				begun := time.Now()
				gone, err := m.Delete(t.Context(), anyone, "x")
				if took := time.Since(begun); (err != nil) != c.err || took > c.took {
					t.Errorf("the delete took %s: %v", took, err)
				}
				if c.err {
					e, ok := errors.AsType[*api.Error](err)
					if !ok || !e.Retryable || e.TerminalReason != api.EndedDeleted || e.RetryAfterMS == 0 {
						t.Errorf("the error is %+v, want one that may be retried", e)
					}
					b.wantDeleting(m)
				}
				for _, s := range c.then {
					if s.refuse < 0 {
						b.wantDeleting(m)
						b.engine.mu.Lock()
						inst.refuse = 0
						b.engine.mu.Unlock()
					}
					if s.again {
						begun := time.Now()
						if gone, err = m.Delete(t.Context(), anyone, "x"); err != nil || time.Since(begun) > 0 {
							t.Errorf("another delete took %s: %v", time.Since(begun), err)
						}
					}
					pass(s.after)
				}
				if !c.err {
					if gone.State != api.StateDeleted || gone.TerminalReason != api.EndedDeleted || gone.Teardown == nil || gone.Teardown.Attempts != c.attempts {
						t.Errorf("the last record: %+v, %+v", gone, gone.Teardown)
					}
					for _, r := range gone.Teardown.Resources {
						if r.Remaining != 0 || r.Error != "" {
							t.Errorf("%s are left of a sandbox that is gone: %+v", r.Kind, r)
						}
					}
				}
				if l := m.List(anyone, api.ListOptions{}); len(l.Sandboxes) != 0 {
					t.Errorf("listed: %+v", l.Sandboxes)
				}
				if _, err := os.Stat(filepath.Join(b.dir, "sandboxes", "x")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("its directory: %v", err)
				}
				if inst.closed != 1 {
					t.Errorf("it was freed %d times, want once", inst.closed)
				}
				if n := b.count("removed"); n != 1 {
					t.Errorf("%d events say that it was removed", n)
				}
				if c.refuse > 5 && c.attempts > 0 && !b.said("it succeeded at attempt 7") {
					t.Errorf("no event says when it succeeded: %v", b.events)
				}
				// By id it may be deleted again, and says why it is gone.
				if again, err := m.Delete(t.Context(), anyone, "x"); err != nil || again.State != api.StateDeleted || again.ID != "x" {
					t.Errorf("a delete of what is gone: %+v, %v", again, err)
				}
				_, err = m.Get(anyone, "x")
				if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeNotFound || e.TerminalReason != api.EndedDeleted {
					t.Errorf("get: %+v", err)
				}
				m.Close(t.Context())
			})
		})
	}
}

// wantDeleting wants x to be listed, with what is left of it and why.
func (b *bubble) wantDeleting(m *Manager) {
	b.t.Helper()
	synctest.Wait()
	l := m.List(anyone, api.ListOptions{States: []api.State{api.StateDeleting}})
	if len(l.Sandboxes) != 1 {
		b.t.Fatalf("listed as deleting: %+v", l.Sandboxes)
	}
	d := l.Sandboxes[0].Teardown
	if d == nil || d.Attempts < 6 || d.NextAt == nil || !strings.Contains(d.Error, "its processes could not be ended") {
		b.t.Fatalf("its teardown: %+v", d)
	}
	left := map[api.ResourceKind]api.Resource{}
	for _, r := range d.Resources {
		left[r.Kind] = r
	}
	if len(left) != len(api.ResourceKinds()) {
		b.t.Errorf("the teardown lists %v", d.Resources)
	}
	if p := left[api.ResourceProcesses]; p.Remaining != 1 || p.Error == "" {
		b.t.Errorf("processes: %+v", p)
	}
	if p := left[api.ResourceNetwork]; p.Remaining != 0 || p.Error != "" {
		b.t.Errorf("network: %+v", p)
	}
	if own, _ := m.Count(anyone.Tenant); own != 1 {
		b.t.Errorf("%d are counted as live; what could not be ended is", own)
	}
}

func (b *bubble) count(kind string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if strings.Contains(e, " "+kind) {
			n++
		}
	}
	return n
}

func (b *bubble) said(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if strings.Contains(e, text) {
			return true
		}
	}
	return false
}

// An instance that another program has ended counts as ended.
func TestNotFoundIsAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, nil)
		b.engine.live["x"].missing = true
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		if sb, err := m.Delete(t.Context(), anyone, "x"); err != nil || sb.State != api.StateDeleted {
			t.Errorf("delete: %+v, %v", sb, err)
		}
		m.Close(t.Context())
	})
}

// A daemon that ends between two attempts has a successor that goes on, and counts
// from the beginning.
func TestDeleteOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, nil)
		inst := b.engine.live["x"]
		inst.refuse = 9
		first := b.daemon(retention.Rule{})
		synctest.Wait()
		if _, err := first.Delete(t.Context(), anyone, "x"); err == nil {
			t.Fatal("a delete that failed six times says nothing")
		}
		Crash(first)
		synctest.Wait()
		second := b.daemon(retention.Rule{})
		if sb, err := second.Get(anyone, "x"); err != nil || sb.TerminalReason == api.EndedLost {
			t.Errorf("after a restart: %+v, %v", sb, err)
		}
		pass(time.Minute)
		if l := second.List(anyone, api.ListOptions{}); len(l.Sandboxes) != 0 {
			t.Errorf("listed: %+v", l.Sandboxes)
		}
		if inst.closed != 1 {
			t.Errorf("it was freed %d times", inst.closed)
		}
		second.Close(t.Context())
	})
}

// The first reason and caller of an end are those of record and events, also when another
// daemon finishes it, for whatever reason, or finds that the sandbox has died.
func TestEndOverARestartKeepsItsCaller(t *testing.T) {
	type verb func(*Manager, context.Context, policy.Caller) error
	kill := func(m *Manager, ctx context.Context, c policy.Caller) error {
		_, err := m.Kill(ctx, c, "x")
		return err
	}
	stop := func(m *Manager, ctx context.Context, c policy.Caller) error {
		_, err := m.Stop(ctx, c, "x", new(time.Duration))
		return err
	}
	remove := func(m *Manager, ctx context.Context, c policy.Caller) error { return m.Remove(ctx, c, "x") }
	by := "tenant local, inprocess uid 1"
	for _, c := range []struct {
		name        string
		first, then verb // then is the other caller's
		dies        bool
		want        api.TerminalReason
	}{
		{name: "kill", first: kill, want: api.EndedKilled},
		{name: "stop", first: stop, want: api.EndedStopped},
		{name: "delete", first: remove, want: api.EndedDeleted},
		{name: "kill of what died", first: kill, dies: true, want: api.EndedKilled},
		{name: "stop of what died", first: stop, dies: true, want: api.EndedStopped},
		{name: "delete of what died", first: remove, dies: true, want: api.EndedDeleted},
		{name: "stop, then a kill", first: stop, then: kill, want: api.EndedStopped},
		{name: "kill, then a delete", first: kill, then: remove, want: api.EndedKilled},
		{name: "delete, then a stop", first: remove, then: stop, want: api.EndedDeleted},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.put("x", true, nil)
				inst := b.engine.live["x"]
				inst.refuse = 9
				first := b.daemon(retention.Rule{})
				synctest.Wait()
				if err := c.first(first, t.Context(), anyone); err == nil {
					t.Fatal("an end that failed says nothing")
				}
				Crash(first)
				synctest.Wait()
				if c.dies {
					delete(b.engine.live, "x")
				}
				second := b.daemon(retention.Rule{})
				if c.then != nil {
					if err := c.then(second, t.Context(), policy.InProcessCaller(2)); err != nil {
						t.Logf("the other says %v", err)
					}
				}
				pass(time.Minute)
				sb, err := second.Get(anyone, "x")
				if gone, ok := second.Removed(anyone, "x"); ok {
					sb, err = gone, nil
				}
				if err != nil || sb.TerminalReason != c.want || sb.EndedBy != by {
					t.Errorf("the record has the end %s by %q, %v", sb.TerminalReason, sb.EndedBy, err)
				}
				if got := b.callers[api.EventStopped]; !slices.Equal(got, []string{by}) {
					t.Errorf("the events of its end have the callers %q", got)
				}
				if got := b.callers[api.EventStopping]; slices.ContainsFunc(got, func(s string) bool { return s != by }) {
					t.Errorf("the events of its ending have the callers %q", got)
				}
				want := by
				if c.then != nil {
					want = "tenant local, inprocess uid 2"
				}
				if c.name == "delete, then a stop" {
					want = by
				}
				if got := b.callers[api.EventRemoved]; len(got) > 0 && !slices.Equal(got, []string{want}) {
					t.Errorf("the events of its removal have the callers %q, want %q", got, want)
				}
				second.Close(t.Context())
			})
		})
	}
}

// A stop that fails is a stop that goes on, and not a delete.
func TestStopThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, nil)
		b.engine.live["x"].refuse = 8
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		if _, err := m.Kill(t.Context(), anyone, "x"); err == nil {
			t.Error("a kill that failed says nothing")
		}
		if sb, _ := m.Get(anyone, "x"); sb.State != api.StateStopping || sb.TerminalReason != api.EndedKilled || sb.Teardown == nil {
			t.Errorf("meanwhile: %+v", sb)
		}
		// A delete of it takes over.
		if _, err := m.Delete(t.Context(), anyone, "x"); err != nil {
			t.Errorf("delete: %v", err)
		}
		if n := b.count("stopped"); n != 1 {
			t.Errorf("%d events say that it stopped", n)
		}
		m.Close(t.Context())
	})
}

// The engine says what is left where it can.
func TestRemainsByWhatTheEngineSays(t *testing.T) {
	m := &Manager{}
	m.assign()
	s := &live{id: "x", dir: t.TempDir(), inst: &stubInstance{done: make(chan struct{})}, ended: make(chan struct{})}
	err := remains.Leaves(api.ResourceProcesses, api.Errorf(api.CodeInternal, "close: %w", &engine.CloseError{Kind: api.ResourceCgroup, Err: &os.PathError{Op: "rmdir", Path: "/sys/fs/cgroup/secret", Err: syscall.EBUSY}}))
	if got := remains.Said(err); got != "its cgroup could not be removed: device or resource busy" {
		t.Errorf("said: %q", got)
	}
	for _, r := range m.remains(s, err) {
		want := map[api.ResourceKind]int{api.ResourceCgroup: 1, api.ResourceDisk: 1}[r.Kind]
		if r.Remaining != want || (r.Error != "") != (r.Kind == api.ResourceCgroup) {
			t.Errorf("%+v, want %d", r, want)
		}
	}
}

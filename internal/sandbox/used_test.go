//go:build linux

package sandbox_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// usedBy is what one sandbox used.
type usedBy struct {
	sandbox api.Sandbox
	used    api.AuditUsed
}

// TestUsedIsToldOnce: however a sandbox ends, what it used is told once, with its
// labels, and unbounded memory is no number.
func TestUsedIsToldOnce(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	for _, end := range []func(id string) error{
		func(id string) error { _, err := m.Stop(t.Context(), operator, id, nil); return err },
		func(id string) error { _, err := m.Kill(t.Context(), operator, id); return err },
		func(id string) error { return m.Remove(t.Context(), operator, id) },
	} {
		sb := w.create(m, "")
		if err := end(sb.ID); err != nil {
			t.Fatal(err)
		}
		if err := m.Remove(t.Context(), operator, sb.ID); err != nil && api.CodeOf(err) != api.CodeNotFound {
			t.Fatal(err)
		}
		w.mu.Lock()
		got := w.used
		w.used = nil
		w.mu.Unlock()
		if len(got) != 1 || got[0].sandbox.ID != sb.ID || got[0].used.Seconds < 0 {
			t.Fatalf("told %+v", got)
		}
		u, most := got[0].used, float64(sb.Limits.MemoryBytes)/(1<<30)
		if want := most * u.Seconds; u.GiBSeconds != want && !u.Partial || most == 0 && !u.Partial {
			t.Errorf("%+v of a sandbox with %v GiB", u, most)
		}
	}
}

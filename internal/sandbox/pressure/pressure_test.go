package pressure

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// machine has sandboxes of which each has 10 bytes.
type machine struct {
	mu        sync.Mutex // guards what follows, and the fields of all
	all       []*box
	available int64
	unknown   bool
	did       []string
}

type box struct {
	m      *machine
	id     string
	since  time.Time
	busy   bool
	allows bool
}

func (b *box) ID() string { return b.id }

func (b *box) IdleSince() (time.Time, bool) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.since, !b.busy
}

func (b *box) Suspend(context.Context) bool {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.allows {
		b.m.did = append(b.m.did, "suspend "+b.id)
		b.m.available += 10
		b.busy = true
	}
	return b.allows
}

func (m *machine) run(t *testing.T, below int64) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go Run(ctx, Options{
		Sandboxes: func() (out []Sandbox) {
			for _, b := range m.all {
				out = append(out, b)
			}
			return out
		},
		Available: func() (int64, bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.available, !m.unknown
		},
		Below: below, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() { cancel(); synctest.Wait() })
}

// after lets time pass and returns what was done meanwhile.
func (m *machine) after(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	did := strings.Join(m.did, ", ")
	m.did = nil
	return did
}

// set changes how much memory is available.
func (m *machine) set(available int64, unknown bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.available, m.unknown = available, unknown
}

func (m *machine) add(idle time.Duration, allows bool) *box {
	b := &box{m: m, id: fmt.Sprintf("s%d", len(m.all)), since: time.Now().Add(-idle), allows: allows}
	m.all = append(m.all, b)
	return b
}

// TestSuspend: as many sandboxes are suspended as are needed, the one that has been idle for longest first, and none that was
// used a moment ago or does not allow it.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{available: 35}
		m.add(time.Minute, true)
		m.add(time.Hour, true)
		m.add(2*time.Hour, false)
		m.add(time.Second-MinIdle, true)
		m.run(t, 50)
		if did := m.after(6 * time.Second); did != "suspend s1, suspend s0" {
			t.Errorf("%s", did)
		}
		if did := m.after(time.Hour); did != "" {
			t.Errorf("with enough memory: %s", did)
		}
		m.set(0, true)
		if did := m.after(time.Hour); did != "" {
			t.Errorf("with unknown memory: %s", did)
		}
		m.set(0, false)
		if did := m.after(time.Minute); did != "suspend s3" {
			t.Errorf("the last one: %s", did)
		}
	})
}

package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
)

// tell reports what happened to a sandbox. The caller holds s.mu, which keeps
// the events of one sandbox in their order.
func (m *Manager) tell(s *live, kind api.EventKind, reason string) {
	e := api.Event{Time: now(), Kind: kind, Tenant: s.tenant, Sandbox: s.id, Name: s.name, Reason: reason}
	switch kind {
	case api.EventStopping, api.EventStopped:
		e.Caller = s.info.EndedBy
	case api.EventRemoved:
		if s.removal != nil {
			e.Caller = s.removal.By
		}
	}
	m.opts.Events(e)
}

// tellExpiring reports when a sandbox will be ended. The caller holds s.mu.
func (m *Manager) tellExpiring(s *live, t lease.Term) {
	at := t.At.UTC()
	m.opts.Events(api.Event{
		Time: now(), Kind: api.EventExpiring, Tenant: s.tenant, Sandbox: s.id, Name: s.name, ExpiresAt: &at,
	})
}

// sawKills takes the kernel's count of kills for memory, and reports and returns
// whether it has risen.
func (m *Manager) sawKills(s *live, kills int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kills <= s.oomSeen {
		return false
	}
	s.oomSeen = kills
	m.tell(s, api.EventOOM, "the memory limit killed a process of it")
	return true
}

// measured is what an instance had used just before it was ended.
type measured struct {
	stat engine.Stat
	ok   bool
	at   time.Time
	net  api.EgressLimits
}

// measure reads what an instance used; afterwards nothing of it is there to ask.
func measure(ctx context.Context, inst engine.Instance) measured {
	got, ok := stat(ctx, inst)
	return measured{stat: got, ok: ok, at: now()}
}

// used tells what a sandbox used from its create or start to its end, once.
func (m *Manager) used(s *live, u measured) {
	if m.opts.Used == nil {
		return
	}
	info := s.snapshot()
	if info.StoppedAt != nil && info.StoppedAt.Before(u.at) { // it died before the cleanup
		u.at = *info.StoppedAt
	}
	began := info.CreatedAt
	if info.StartedAt != nil {
		began = *info.StartedAt
	}
	if info.ResumedAt != nil && info.ResumedAt.After(began) {
		began = *info.ResumedAt
	}
	out := api.AuditUsed{Seconds: max(u.at.Sub(began), 0).Seconds(), Partial: !u.ok, BytesIn: u.net.BytesIn, BytesOut: u.net.BytesOut}
	if u.ok {
		out.CPUSeconds = u.stat.CPU.Seconds()
	}
	held := !slices.ContainsFunc(info.Unenforced, func(l api.Unenforced) bool { return l.Field == "limits.memory_bytes" })
	if n := info.Limits.MemoryBytes; n > 0 && held {
		out.GiBSeconds = float64(n) / (1 << 30) * out.Seconds
	} else {
		out.Partial = true
	}
	m.opts.Used(info, out)
}

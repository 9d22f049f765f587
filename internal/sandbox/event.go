package sandbox

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
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

// used tells what a sandbox used from its create, start or resume to its end, once.
func (m *Manager) used(s *live, last usage.Last) {
	if m.opts.Used != nil {
		info := s.snapshot()
		m.opts.Used(info, last.Of(info))
	}
}

package sandbox

import (
	"context"

	"github.com/cloche-dev/cloche/api"
)

// askAbout asks the agent what became of a program; nil is one that it does not know.
func (m *Manager) askAbout(ctx context.Context, s *live, id string) (*api.Process, error) {
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return nil, err
	}
	recs, err := client.Processes(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		if r.ExecID == id {
			return &r, nil
		}
	}
	return nil, nil
}

// condemn kills all that runs in a sandbox, by its engine and without help from inside.
// It is lost then, for that reason.
func (m *Manager) condemn(s *live, reason string, cause error) {
	s.mu.Lock()
	inst := s.inst
	if !s.leased() || inst == nil {
		s.mu.Unlock()
		return
	}
	s.condemned = reason
	s.mu.Unlock()
	m.log.Error("end a sandbox that has not kept a deadline", "sandbox", s.id, "reason", reason, "error", cause)
	if err := bounded(m.ctx, closeTimeout, inst.Close); err != nil {
		m.log.Error("close instance", "sandbox", s.id, "error", err)
		// As any end that fails, it is tried again until it succeeds.
		if _, err := m.end(m.ctx, s, why{cause: api.EndedLost, text: reason}, nil); err != nil {
			m.log.Error("end a sandbox that has not kept a deadline", "sandbox", s.id, "error", err)
		}
	}
}

package sandbox

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// SignalProcess sends a signal to a process, managed or not.
func (m *Manager) SignalProcess(ctx context.Context, caller policy.Caller, ref, id string, r api.SignalRequest) error {
	s, err := m.find(caller, policy.VerbSignal, ref)
	if err != nil {
		return err
	}
	defer s.use()()
	return m.signal(ctx, s, id, r)
}

func (m *Manager) signal(ctx context.Context, s *live, id string, r api.SignalRequest) error {
	number := api.SignalNumber(r.Signal)
	if number == 0 {
		return api.Invalid("signal", "%.40q is no signal", r.Signal).WithHint("name one like TERM, INT or KILL")
	}
	if r.Scope == "" {
		r.Scope = api.ScopeTree
	}
	p := s.procs.get(id)
	if p != nil {
		if ended, _ := p.ended(); ended {
			return hasEnded(id)
		}
		if r.Signal == "KILL" {
			p.mu.Lock()
			p.sentKill = true
			p.mu.Unlock()
		}
	}
	return m.onProcess(ctx, s, func(ctx context.Context, client *agent.Client) error {
		err := client.SignalProcess(ctx, id, number, r.Scope, r.Forestall)
		if errors.Is(err, api.ErrUnsupported) && r.Scope == api.ScopeTree {
			return client.Signal(ctx, id, number) // an older agent
		}
		return err
	})
}

// ResizeProcess changes the size of a process's terminal.
func (m *Manager) ResizeProcess(ctx context.Context, caller policy.Caller, ref, id string, size api.Size) error {
	s, err := m.find(caller, policy.VerbResize, ref)
	if err != nil {
		return err
	}
	defer s.use()()
	return m.resize(ctx, s, id, size.Rows, size.Cols)
}

func (m *Manager) resize(ctx context.Context, s *live, id string, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return api.Invalid("rows", "a terminal of %d rows and %d columns was asked for", rows, cols).WithHint("at least 1 each")
	}
	if p := s.procs.get(id); p != nil {
		if ended, _ := p.ended(); ended {
			return hasEnded(id)
		}
	}
	return m.onProcess(ctx, s, func(ctx context.Context, client *agent.Client) error {
		return client.Resize(ctx, id, rows, cols)
	})
}

// onProcess runs one small call about a process on the agent.
func (m *Manager) onProcess(ctx context.Context, s *live, call func(context.Context, *agent.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return err
	}
	if err := call(ctx, client); err != nil {
		select {
		case <-client.Done():
			return s.explain(err)
		default: // it is what the agent answered
			return err
		}
	}
	return nil
}

// hasEnded is the error for what only a living process can be asked.
func hasEnded(id string) error {
	return api.Errorf(api.CodeState, "process %s has ended", id)
}

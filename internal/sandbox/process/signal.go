package process

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// SignalProcess sends a signal to a process, managed or not.
func (m *Runner) SignalProcess(ctx context.Context, caller policy.Caller, ref, id string, r api.SignalRequest) error {
	s, err := m.o.Find(ctx, caller, policy.VerbSignal, ref)
	if err != nil {
		return err
	}
	defer s.sandbox.Use()()
	return m.signal(ctx, s, id, r)
}

func (m *Runner) signal(ctx context.Context, s *Table, id string, r api.SignalRequest) error {
	number := api.SignalNumber(r.Signal)
	if number == 0 {
		return api.Invalid("signal", "%.40q is no signal", r.Signal).WithHint("name one like TERM, INT or KILL")
	}
	if r.Scope == "" {
		r.Scope = api.ScopeTree
	}
	p := s.get(id)
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
func (m *Runner) ResizeProcess(ctx context.Context, caller policy.Caller, ref, id string, size api.Size) error {
	s, err := m.o.Find(ctx, caller, policy.VerbResize, ref)
	if err != nil {
		return err
	}
	defer s.sandbox.Use()()
	return m.resize(ctx, s, id, size.Rows, size.Cols)
}

func (m *Runner) resize(ctx context.Context, s *Table, id string, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return api.Invalid("rows", "a terminal of %d rows and %d columns was asked for", rows, cols).WithHint("at least 1 each")
	}
	if p := s.get(id); p != nil {
		if ended, _ := p.ended(); ended {
			return hasEnded(id)
		}
	}
	return m.onProcess(ctx, s, func(ctx context.Context, client *agent.Client) error {
		return client.Resize(ctx, id, rows, cols)
	})
}

// onProcess runs one small call about a process on the agent.
func (m *Runner) onProcess(ctx context.Context, s *Table, call func(context.Context, *agent.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := s.sandbox.Agent(ctx)
	if err != nil {
		return err
	}
	if err := call(ctx, client); err != nil {
		select {
		case <-client.Done():
			return s.sandbox.Explain(err)
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

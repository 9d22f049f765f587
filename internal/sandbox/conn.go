package sandbox

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// callTimeout bounds a call to an agent that does a small thing.
const callTimeout = 30 * time.Second

// present dials the instance that a sandbox has at that time. After a resume from the disk that is another one.
type present struct{ s *live }

// Dial implements agentconn.Dialer.
func (p present) Dial(ctx context.Context) (net.Conn, error) {
	p.s.mu.Lock()
	inst, info := p.s.inst, p.s.info
	p.s.mu.Unlock()
	if inst == nil {
		return nil, stage.NotRunning(info)
	}
	return inst.Dial(ctx)
}

// Stopped implements engine.Stoppable.
func (p present) Stopped() []string {
	p.s.mu.Lock()
	inst := p.s.inst
	p.s.mu.Unlock()
	if s, ok := inst.(engine.Stoppable); ok {
		return s.Stopped()
	}
	return nil
}

// newConn is a connection to the agent of s, which is not dialed yet. older may be nil.
func (m *Manager) newConn(s *live, older func(version int)) *agentconn.Conn {
	return agentconn.New(agentconn.Options{Dialer: present{s}, Token: s.token, Older: older, Silence: m.agentSilence, Still: func() bool {
		return s.deadlines.Held()
	}})
}

// agentOf returns the client of a running sandbox. It waits while one is captured for a fork.
func (m *Manager) agentOf(ctx context.Context, s *live) (*agent.Client, error) {
	s.mu.Lock()
	info, conn, captured := s.info, s.agent, s.captured
	s.mu.Unlock()
	if captured != nil && info.State.Held() {
		select {
		case <-captured:
		case <-ctx.Done():
		}
		s.mu.Lock()
		info, conn = s.info, s.agent
		s.mu.Unlock()
	}
	// A stop still reads what the processes said last.
	if conn == nil || info.State != api.StateRunning && info.State != api.StateStopping && info.State != api.StateDeleting {
		return nil, stage.NotRunning(info)
	}
	return conn.Get(ctx)
}

// reachRetry is the interval for reconnecting to the agent of a sandbox while a caller waits for it.
const reachRetry = 5 * time.Second

// attended returns a context for a call that waits for what an agent tells without asking
// it: it ends, with the reason as its cause, when the agent is found to answer no more.
// The caller calls done. A paused or ended sandbox is no reason.
func (m *Manager) attended(ctx context.Context, s *live) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ended by done
		for ctx.Err() == nil && !s.over() {
			client, err := m.agentOf(ctx, s)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				left := client.Attend()
				select {
				case <-ctx.Done():
				case <-client.Done():
					err = client.Silent()
				}
				left()
			case !errors.Is(err, api.ErrSandboxLost):
				err = nil // it is paused, or about to end
			}
			if err != nil && s.snapshot().State == api.StateRunning && !s.diedWithin(err) {
				cancel(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-s.ended:
			case <-time.After(reachRetry):
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

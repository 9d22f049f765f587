package sandbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
)

// watch waits for the end of an instance. It runs once for each, owned by the Manager's WaitGroup.
func (m *Manager) watch(s *live, inst engine.Instance) {
	select {
	case <-m.ctx.Done():
		return
	case <-inst.Done():
	}
	last := usage.Ending(inst)
	end := ending{reason: "the sandbox died without a record of why"}
	if last.How != "" {
		end.reason = "the sandbox died: " + agent.PlainText(last.How, process.MaxSaid)
	}
	ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
	defer cancel()
	if st, ok := usage.Stat(ctx, inst); ok && m.sawKills(s, st.OOMKills) {
		end.oom, end.reason = true, "the sandbox's memory limit killed it"
		if last.How != "" {
			end.reason += ": " + agent.PlainText(last.How, process.MaxSaid)
		}
	}

	s.mu.Lock()
	if s.info.State == api.StateSuspended || s.inst != nil && s.inst != inst {
		s.mu.Unlock()
		return // it ended with a suspend
	}
	end.reason = cmp.Or(s.condemned, end.reason)
	asked := !s.leased()
	if !asked {
		stopped := now()
		s.info.StoppedAt = &stopped
		_ = s.move(api.StateLost, end.reason)
		s.info.TerminalReason, s.endBegan = end.cause(), stopped
		s.loseRoot(end.reason)
		if err := s.save(); err != nil {
			m.log.Error("save record", "sandbox", s.id, "error", err)
		}
		m.tell(s, api.EventLost, end.reason)
		m.reaper.poke()
	} else {
		end.reason = "the sandbox was ended"
	}
	s.finish(end)
	info := s.info
	s.mu.Unlock()
	if asked {
		return // the caller that requested the end cleans up
	}

	m.log.Warn("sandbox lost", "sandbox", info.ID, "reason", end.reason, "last_words", last.LastWords)
	m.opts.Ended(info)
	m.clean(ctx, s)
}

// cause returns the reason of an end without a request.
func (e ending) cause() api.TerminalReason {
	if e.oom {
		return api.EndedOOM
	}
	return api.EndedLost
}

// finish marks the instance as ended, once. The caller holds s.mu.
func (s *live) finish(end ending) {
	select {
	case <-s.ended:
	default:
		s.deadlines.End()
		if s.excess != nil {
			end.reason = s.excess.Message
		}
		s.end = end
		s.ports.Close(true)
		close(s.ended)
	}
}

// over reports whether nothing runs any more.
func (s *live) over() bool { return remains.Closed(s.ended) }

// explain turns the error of a call into what really happened when the sandbox
// died under it.
func (s *live) explain(err error) error {
	if err == nil || !s.diedWithin(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.excess != nil {
		over := *s.excess
		return over.WithCause(err)
	}
	lost := api.Errorf(api.CodeSandboxLost, "sandbox %s ended during the call: %s", s.info.Name, s.end.reason).WithCause(err)
	if lost.TerminalReason = s.info.TerminalReason; lost.TerminalReason == "" {
		lost.TerminalReason = s.end.cause()
	}
	return lost
}

// diedWithin reports whether err is one that the death of the instance causes.
// The connection breaks before the death is seen, so it waits a moment for that.
func (s *live) diedWithin(err error) bool {
	switch api.CodeOf(err) {
	case api.CodeUnavailable, api.CodeSandboxLost, api.CodeInternal:
	default:
		return false
	}
	if errors.Is(err, agent.ErrSilent) || errors.Is(err, agent.ErrSaving) {
		return s.over() // no connection broke by a death
	}
	select {
	case <-s.ended:
		return true
	case <-time.After(process.DeathGrace):
		return false
	}
}

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

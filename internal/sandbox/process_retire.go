package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxLiving bounds the managed processes of one sandbox that live: those that
	// run, and those whose output something they left behind holds open.
	maxLiving = 1024
	// maxEnded bounds, beside them, the records of those that have ended. They are
	// kept with their logs until there are more, or the retention is over.
	maxEnded = 1024
	// retireAgain is how long what could not be retired is left alone.
	retireAgain = time.Minute
)

// count says how many processes live, and how many ended ones are being read, so
// that they cannot be retired now. The caller holds t.mu.
func (t *processTable) count() (living, read int) {
	for _, p := range t.byID {
		switch _, final := p.endedAt(); {
		case !final:
			living++
		case p.reads.Load() > 0:
			read++
		}
	}
	return living, read
}

// endedAt is when a process ended, and whether its record is final: it has ended
// and all of its output is in its log.
func (p *process) endedAt() (at time.Time, final bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.collected || p.removing || p.removed || p.rec.EndedAt == nil {
		return time.Time{}, false
	}
	return *p.rec.EndedAt, p.rec.State.Ended()
}

// retiring claims the ended processes whose retention is over, which the caller must retire, and
// returns when the next one is over. It skips those that are being read, started or removed.
func (t *processTable) retiring(r Retention, now time.Time) (gone []endedAt[*process], next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []endedAt[*process]
	for id, p := range t.byID {
		at, final := p.endedAt()
		switch {
		case !final || t.busy[id] != nil:
		case p.reads.Load() > 0:
			if r.Count > 0 {
				r.Count--
			}
		default:
			ended = append(ended, endedAt[*process]{at, p})
		}
	}
	gone, next = retire(r, ended, now)
	for _, g := range gone {
		t.busy = orEmpty(t.busy)
		t.busy[g.s.id] = make(chan struct{})
	}
	return gone, next
}

// free gives back an id that was claimed.
func (t *processTable) free(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[id])
	delete(t.busy, id)
}

// makeRoom retires the oldest ended processes so that another can be put on
// record.
func (m *Manager) makeRoom(ctx context.Context, s *live) error {
	gone, _ := s.procs.retiring(Retention{For: m.opts.Retention.For, Count: m.maxEnded - 1}, now())
	return m.retireProcesses(ctx, s, gone)
}

// retireProcesses forgets ended processes that were claimed for that.
func (m *Manager) retireProcesses(ctx context.Context, s *live, gone []endedAt[*process]) error {
	var errs []error
	for _, g := range gone {
		if len(errs) == 0 {
			if err := m.retireProcess(ctx, s, g.s); err != nil {
				errs = append(errs, err)
			}
		}
		s.procs.free(g.s.id)
	}
	return errors.Join(errs...)
}

// retireProcess forgets an ended process, here and in the sandbox. What it left
// running there lives on.
func (m *Manager) retireProcess(ctx context.Context, s *live, p *process) error {
	if !p.condemn() {
		return nil // a reader has just opened it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	client, err := m.agentOf(ctx, s)
	if err == nil {
		err = client.ForgetProcess(ctx, p.id)
	}
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		p.pardon()
		return err
	}
	p.halt()
	p.mu.Lock()
	p.removed = true
	p.broadcast()
	p.mu.Unlock()
	s.procs.drop(p)
	if err := p.erase(); err != nil {
		// Nobody finds it any more; the end of its sandbox takes it along.
		m.log.Error("retire process", "sandbox", s.id, "process", p.id, "error", err)
	}
	return nil
}

// condemn prevents the log of a process from being opened again, unless it is open.
func (p *process) condemn() bool {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	p.condemned = p.logRefs == 0
	return p.condemned
}

func (p *process) pardon() {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	p.condemned = false
}

// outdates sees to it that the record of a process which has just become final
// is looked at again when its retention is over.
func (m *Manager) outdates(s *live, at time.Time) {
	if m.opts.Retention.For < 0 {
		return
	}
	due := at.Add(m.opts.Retention.For)
	s.procs.mu.Lock()
	sooner := s.procs.due.IsZero() || due.Before(s.procs.due)
	if sooner {
		s.procs.due = due
	}
	s.procs.mu.Unlock()
	if sooner {
		m.poke()
	}
}

// reapProcesses retires, in the background, the processes of a running sandbox whose retention is
// over, and returns when to check again. A zero time is never.
func (m *Manager) reapProcesses(s *live) (next time.Time) {
	t := &s.procs
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.due.IsZero() || now().Before(t.due) {
		return t.due
	}
	t.due = now().Add(retireAgain)
	m.background(func() {
		// Nobody is told that it goes on: the next look is a minute away, and finds
		// what this one has to leave.
		r := Retention{For: m.opts.Retention.For, Count: -1}
		gone, next := t.retiring(r, now())
		if err := m.retireProcesses(m.ctx, s, gone); err != nil {
			m.log.Warn("retire processes", "sandbox", s.id, "error", err)
			return
		}
		t.mu.Lock()
		left, _ := t.count()
		if t.due = next; next.IsZero() && left < len(t.byID) {
			t.due = now().Add(retireAgain) // some are being read
		}
		t.mu.Unlock()
		m.poke()
	})
	return t.due
}

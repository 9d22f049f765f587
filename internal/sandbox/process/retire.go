package process

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
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
func (t *Table) count() (living, read int) {
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
func (t *Table) retiring(r retention.Rule, now time.Time) (gone []retention.Ended[*process], next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []retention.Ended[*process]
	for id, p := range t.byID {
		at, final := p.endedAt()
		switch {
		case !final || t.busy[id] != nil:
		case p.reads.Load() > 0:
			if r.Count > 0 {
				r.Count--
			}
		default:
			ended = append(ended, retention.Ended[*process]{At: at, Thing: p})
		}
	}
	gone, next = retention.Select(r, ended, now)
	for _, g := range gone {
		t.busy = orEmpty(t.busy)
		t.busy[g.Thing.id] = make(chan struct{})
	}
	return gone, next
}

// free gives back an id that was claimed.
func (t *Table) free(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[id])
	delete(t.busy, id)
}

// makeRoom retires the oldest ended processes so that another can be put on
// record.
func (m *Runner) makeRoom(ctx context.Context, s *Table) error {
	gone, _ := s.retiring(retention.Rule{For: m.o.Retention.For, Count: m.maxEnded - 1}, now())
	return m.retireProcesses(ctx, s, gone)
}

// retireProcesses forgets ended processes that were claimed for that.
func (m *Runner) retireProcesses(ctx context.Context, s *Table, gone []retention.Ended[*process]) error {
	var errs []error
	for _, g := range gone {
		if len(errs) == 0 {
			if err := m.retireProcess(ctx, s, g.Thing); err != nil {
				errs = append(errs, err)
			}
		}
		s.free(g.Thing.id)
	}
	return errors.Join(errs...)
}

// retireProcess forgets an ended process, here and in the sandbox. What it left
// running there lives on.
func (m *Runner) retireProcess(ctx context.Context, s *Table, p *process) error {
	if !p.condemn() {
		return nil // a reader has just opened it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	client, err := s.sandbox.Agent(ctx)
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
	s.drop(p)
	if err := p.erase(); err != nil {
		// No caller finds it any more; the end of its sandbox removes it.
		m.o.Logger.Error("retire process", "sandbox", s.names.ID, "process", p.id, "error", err)
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
func (m *Runner) outdates(s *Table, at time.Time) {
	if m.o.Retention.For < 0 {
		return
	}
	due := at.Add(m.o.Retention.For)
	s.mu.Lock()
	sooner := s.due.IsZero() || due.Before(s.due)
	if sooner {
		s.due = due
	}
	s.mu.Unlock()
	if sooner {
		m.o.Wake()
	}
}

// reapProcesses retires, in the background, the processes of a running sandbox whose retention is
// over, and returns when to check again. A zero time is never.
func (m *Runner) reapProcesses(s *Table) (next time.Time) {
	t := s
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.due.IsZero() || now().Before(t.due) {
		return t.due
	}
	t.due = now().Add(retireAgain)
	m.o.Background(func() {
		// No caller waits for it: the next look is a minute away, and finds what this
		// one has to leave.
		r := retention.Rule{For: m.o.Retention.For, Count: -1}
		gone, next := t.retiring(r, now())
		if err := m.retireProcesses(m.o.Context, s, gone); err != nil {
			m.o.Logger.Warn("retire processes", "sandbox", s.names.ID, "error", err)
			return
		}
		t.mu.Lock()
		left, _ := t.count()
		if t.due = next; next.IsZero() && left < len(t.byID) {
			t.due = now().Add(retireAgain) // some are being read
		}
		t.mu.Unlock()
		m.o.Wake()
	})
	return t.due
}

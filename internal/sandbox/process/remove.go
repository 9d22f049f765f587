package process

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// RemoveProcess takes one managed process away, running or not, with its record
// and its log. What was begun is finished, also when the caller has gone.
func (m *Runner) RemoveProcess(ctx context.Context, caller policy.Caller, ref, id string) error {
	s, err := m.o.Find(ctx, caller, policy.VerbRemoveProcess, ref)
	if err != nil {
		return err
	}
	defer s.sandbox.Use()()
	p, free, err := s.claim(ctx, id)
	if err != nil {
		return err
	}
	defer free()
	if p == nil {
		rec, err := m.process(ctx, s, id)
		if err != nil {
			return err
		}
		if !rec.Managed {
			return notManaged(id)
		}
	}
	if p != nil {
		p.setRemoving(true)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := m.askRemove(ctx, s, id); err != nil {
		if p != nil {
			p.setRemoving(false)
		}
		return err
	}
	if p == nil {
		return nil
	}
	return m.forgetProcess(s, p)
}

// askRemove takes a process out of the sandbox, if that is still there.
func (m *Runner) askRemove(ctx context.Context, s *Table, id string) error {
	if s.sandbox.Over() {
		return nil
	}
	client, err := s.sandbox.Agent(ctx)
	if err == nil {
		err = client.RemoveProcess(ctx, id)
	}
	if err != nil && !errors.Is(err, api.ErrNotFound) && !s.sandbox.DiedWithin(err) {
		return err
	}
	return nil
}

func (p *process) setRemoving(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removing = on
}

// halt ends the collecting of a process's output.
func (p *process) halt() {
	p.mu.Lock()
	stop, stopped := p.stop, p.stopped
	p.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
}

// forgetProcess ends whatever goes on with a process that is no more, and erases
// what is kept of it.
func (m *Runner) forgetProcess(s *Table, p *process) error {
	p.halt()
	if p.shown() {
		p.mu.Lock()
		said := p.said
		p.mu.Unlock()
		m.update(s, p, func(rec *api.Process) {
			if said != nil {
				takeOver(rec, *said)
			} else {
				unknown("it was removed")(rec)
			}
		})
	}
	log, release, err := p.openLog()
	if err == nil {
		_ = log.Finish("removed") // it is about to be deleted; readers are told
		defer release()
	}
	p.mu.Lock()
	p.removed = true
	p.broadcast()
	p.mu.Unlock()
	s.drop(p)
	if err := p.erase(); err != nil {
		return api.Errorf(api.CodeInternal, "the log of process %s could not be removed", p.id).WithCause(err)
	}
	return nil
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Recover finds the world of an earlier daemon again: it adopts what lives,
// marks what died as lost, and removes what a creation or removal left half
// done. It is called once, before anything else, by a Manager that is not
// ephemeral.
func (m *Manager) Recover(ctx context.Context) error {
	ids, err := recordDirs(m.sandboxesDir())
	if err != nil {
		return err
	}
	keep := map[string][]string{} // by engine
	var errs []error
	for _, id := range ids {
		s, err := m.adopt(ctx, id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// A creation that never finished, or a removal that began.
			errs = append(errs, m.clear(id))
		case err != nil:
			// What cannot be read or reached now may be later, by another build or
			// when the machine has recovered: nothing of it is swept.
			m.log.Error("adopt sandbox", "sandbox", id, "error", err)
			errs = append(errs, err)
			for _, eng := range m.opts.Engines {
				keep[eng.Name()] = append(keep[eng.Name()], id)
			}
		case s.inst != nil:
			keep[s.info.Engine] = append(keep[s.info.Engine], id)
		}
	}
	for _, eng := range m.opts.Engines {
		if err := eng.Sweep(ctx, m.opts.Owner, keep[eng.Name()]); err != nil {
			errs = append(errs, fmt.Errorf("sweep engine %s: %w", eng.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// clear removes the directory of a sandbox that is not one.
func (m *Manager) clear(id string) error {
	dir := filepath.Join(m.sandboxesDir(), id)
	if err := workspace.SweepStaging(filepath.Join(dir, "staging")); err != nil {
		return fmt.Errorf("unmount what was staged for %s: %w", id, err)
	}
	return workspace.RemoveTree(dir)
}

// adopt takes one recorded sandbox into the tables. s.inst is nil for one that
// no longer runs.
func (m *Manager) adopt(ctx context.Context, id string) (*live, error) {
	dir := filepath.Join(m.sandboxesDir(), id)
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	s := &live{
		id: id, tenant: r.Info.Tenant, name: r.Info.Name, dir: dir, info: r.Info,
		token: r.AgentToken, image: r.Image, ended: make(chan struct{}),
	}
	m.mu.Lock()
	m.byID[id], m.byName[nameKey{s.tenant, s.name}] = s, s
	m.mu.Unlock()
	if slices.Contains([]cloche.State{cloche.StateStopped, cloche.StateLost}, s.info.State) {
		s.finish(ending{reason: "the sandbox was ended"})
		return s, nil
	}
	eng := m.engineNamed(s.info.Engine)
	if eng == nil {
		return s, cloche.Errorf(cloche.CodeUnavailable, "sandbox %s needs engine %q, which is not in this build", id, s.info.Engine)
	}
	inst, err := eng.Recover(ctx, r.EngineState)
	if errors.Is(err, cloche.ErrNotFound) {
		return s, m.markLost(s)
	}
	if err != nil {
		return s, fmt.Errorf("recover sandbox %s: %w", id, err)
	}
	s.inst = inst
	s.agent = &agentConn{inst: inst, token: s.token}
	if st, ok := stat(ctx, inst); ok {
		s.oomSeen = st.OOMKills
	}
	s.info.State, s.info.Reason = cloche.StateRunning, ""
	m.wg.Go(func() { m.watch(s, inst) })
	m.log.Info("sandbox adopted", "sandbox", id)
	return s, nil
}

// markLost records that a sandbox died while no daemon was there to see it.
func (m *Manager) markLost(s *live) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stopped := now()
	s.info.State, s.info.Reason, s.info.StoppedAt = cloche.StateLost, "the sandbox died while the daemon was not running", &stopped
	s.finish(ending{reason: s.info.Reason})
	m.opts.Ended(s.info)
	return s.save()
}

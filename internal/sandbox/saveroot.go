package sandbox

import (
	"context"
	"math"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/savedroot"
)

// clockMargin is how far the clock of a sandbox's files can be behind this machine's.
const clockMargin = time.Second

// saveRoot saves what a sandbox whose processes have ended has changed in its root, for the next start. A stop does
// not fail because of that: the record says what is lost. unreached is why the agent does not answer, or nil. The end of
// ctx, which a shutdown of the daemon has, cuts the save short.
func (st Starter) saveRoot(ctx context.Context, s *live, unreached error) {
	s.mu.Lock()
	kept := s.spec != nil && !s.info.ReadOnlyRoot && !s.teardown.Removing()
	s.mu.Unlock()
	if !kept {
		return
	}
	begun := time.Now()
	size, skipped, err := int64(0), []api.Loss(nil), unreached
	if err == nil {
		size, skipped, err = st.writeRoot(ctx, s)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		st.m.log.Warn("save root", "sandbox", s.id, "error", err)
		s.loseRoot(savedroot.Failed(err))
		return
	}
	s.info.SavedRootBytes, s.info.Lost = size, skipped
	st.m.log.Debug("root saved", "sandbox", s.id, "bytes", size, "took", time.Since(begun))
}

func (st Starter) writeRoot(ctx context.Context, s *live) (size int64, skipped []api.Loss, err error) {
	s.mu.Lock()
	below, since, name, limit := s.image.Path, s.rootSince, s.info.Engine, s.info.Limits.DiskBytes
	s.mu.Unlock()
	if _, shared := st.m.engineNamed(name).(engine.RootSharer); shared {
		return 0, nil, nil
	}
	if below == "" || st.m.copier.remote(name) != nil {
		return 0, nil, savedroot.ErrNoImage
	}
	if _, keeper := st.m.engineNamed(name).(engine.VolumeKeeper); keeper {
		since = time.Unix(0, math.MaxInt64) // its clock may be another machine's
	}
	client, err := st.m.agentOf(ctx, s)
	if err != nil {
		return 0, nil, err
	}
	select {
	case st.saves <- struct{}{}:
		defer func() { <-st.saves }()
	case <-s.ended:
		return 0, nil, s.explain(api.Errorf(api.CodeSandboxLost, "it was killed"))
	}
	return savedroot.Save(ctx, client, below, since, s.dir, limit, func(bytes int64) error { return st.m.pauser.fits(s, bytes) })
}

// loseRoot puts on record that the end of a sandbox, for that reason, took the changes of its root with it. The
// caller holds s.mu.
func (s *live) loseRoot(reason string) {
	if s.spec != nil && !s.info.ReadOnlyRoot {
		s.info.Lost = []api.Loss{{Kind: api.LossRoot, Reason: reason}}
	}
}

// restoreRoot gives a started sandbox the root that its last stop saved.
func (c *creation) restoreRoot(ctx context.Context) error {
	c.s.mu.Lock()
	c.s.rootSince = now().Add(-clockMargin)
	none := c.from == nil || c.s.info.ReadOnlyRoot
	c.s.mu.Unlock()
	if none {
		return nil
	}
	if err := savedroot.Restore(ctx, c.client, c.s.dir); err != nil {
		return api.Errorf(api.CodeOf(err), "the root of sandbox %s could not be restored", c.s.name).
			WithHint("what was saved of it is kept; try again").WithCause(err)
	}
	return nil
}

package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/filesync"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// lastCopyTimeout bounds the sync before a sandbox ends.
const lastCopyTimeout = time.Minute

// copier synchronizes directories of this machine with their copies in sandboxes of remote engines.
type copier struct{ m *Manager }

// remote returns the engine of a name if its sandboxes run at a service, and else nil.
func (cp copier) remote(name string) engine.Remote {
	remote, _ := cp.m.engineNamed(name).(engine.Remote)
	return remote
}

// copyDir has the sandbox get a copy of dir, which is taken over.
func (c *creation) copyDir(dir *workspace.Dir, target string, readOnly bool) error {
	if c.m.copier.remote(c.permit.Engine()).RemoteTerms().HostMounts {
		c.plan.Volumes = append(c.plan.Volumes, engine.Volume{Target: target, Source: dir.Path(), ReadOnly: readOnly})
		return dir.Close()
	}
	c.plan.Volumes = append(c.plan.Volumes, engine.Volume{Target: target})
	return c.s.copies.Add(c.s.dir, dir, target, readOnly)
}

// fillCopies carries the directories into the new sandbox.
func (c *creation) fillCopies(ctx context.Context) error { return c.s.copies.Fill(ctx, c.client) }

// told tells of files that changed on both sides, and logs what a sync left out.
func (cp copier) told(s *live) func(target string, rep filesync.Report) {
	return func(target string, rep filesync.Report) {
		cp.m.log.Debug("copy synchronized", "sandbox", s.id, "target", target, "in", rep.In, "out", rep.Out)
		for _, skip := range rep.Skipped {
			cp.m.log.Info("a file is not synchronized", "sandbox", s.id, "target", target, "path", skip.Path, "reason", skip.Reason)
		}
		if n := len(rep.Conflicts); n > 0 {
			cp.degrade(s, fmt.Sprintf("%d files of %s changed in the sandbox and on the host, such as %.200q: those of the host were kept", n, target, rep.Conflicts[0]))
		}
	}
}

func (cp copier) degrade(s *live, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Degraded = reason
	if s.making.Announced() {
		cp.m.tell(s, api.EventDegraded, reason)
	}
}

// SyncFiles implements process.Programs.
func (h handle) SyncFiles(ctx context.Context, after bool) error {
	if h.s.copies.Len() == 0 {
		return nil
	}
	client, err := h.m.agentOf(ctx, h.s)
	if err != nil {
		return err
	}
	return h.s.explain(h.s.copies.Sync(ctx, client, after))
}

// keep synchronizes the copies of a sandbox while it is in use, until it has ended.
func (cp copier) keep(s *live) {
	if s.copies.Len() == 0 {
		return
	}
	cp.m.background(func() {
		s.copies.Keep(cp.m.ctx, s.ended, s.procs.Running, func(ctx context.Context) error {
			if s.snapshot().State != api.StateRunning {
				return nil
			}
			err := handle{cp.m, s}.SyncFiles(ctx, true)
			if err != nil && ctx.Err() == nil && !s.over() {
				cp.m.log.Warn("synchronize the copies of a sandbox", "sandbox", s.id, "error", err)
			}
			return err
		})
	})
}

// last synchronizes the copies of a sandbox that is about to end. A private workspace that is removed with it is left.
func (cp copier) last(ctx context.Context, s *live, conn *agentconn.Conn) {
	if s.copies.Len() == 0 || conn == nil || s.over() {
		return
	}
	if ws := s.snapshot().Workspace; s.copies.Len() == 1 && s.isRemoving() && ws.Dir == "" && ws.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCopyTimeout)
	defer cancel()
	client, err := conn.Get(ctx)
	if err == nil {
		err = s.copies.Sync(ctx, client, true)
	}
	if err != nil && !s.over() {
		cp.m.log.Error("the last changes of a sandbox were not carried to the host", "sandbox", s.id, "error", err)
		cp.degrade(s, "its last changes of files were not carried to the host")
	}
}

// adopt opens the directories of a recovered sandbox.
func (cp copier) adopt(s *live, dirs []workspace.Attached) {
	if err := s.copies.Reopen(s.dir, dirs); err != nil {
		cp.m.log.Error("the files of a sandbox are not synchronized any more", "sandbox", s.id, "error", err)
		s.info.Degraded = "its files are not synchronized with the host any more"
	}
}

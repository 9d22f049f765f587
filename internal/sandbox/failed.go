package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// unreadableSandbox is what is shown of a sandbox whose record cannot be read because of
// err. Its files are kept and its processes run on until it is removed by name. Without a
// description that can be read it has the name of its directory, and no tenant: only the
// operator sees it.
func (rc recovery) unreadableSandbox(id, dir string, err error) *live {
	known, _ := record.ReadIdentity(dir)
	info := known.Info
	info.ID, info.Name, info.State = id, cmp.Or(info.Name, id), api.StateFailed
	file := filepath.Join("owners", rc.m.opts.Owner, "sandboxes", id, directory.Record)
	why := "cannot be read"
	if errors.Is(err, fs.ErrNotExist) {
		why = "is missing"
	}
	info.Reason = fmt.Sprintf("its record %s %s; its files are kept until it is removed", file, why)
	if info.CreatedAt.IsZero() {
		info.CreatedAt = now()
		if fi, err := os.Stat(dir); err == nil {
			info.CreatedAt = fi.ModTime().UTC()
		}
	}
	s := &live{
		id: id, tenant: info.Tenant, name: info.Name, profile: info.Profile, dir: dir, info: info, wake: rc.m.reaper.poke, digest: known.KeyDigest,
		ended: make(chan struct{}), making: stage.CreationUnreadable, unreached: true,
		lease: lease.New(info.CreatedAt, info.Limits, now()),
	}
	rc.m.connect(s)
	return s
}

// listUnreadable puts a sandbox whose record cannot be read into the tables, and says so
// once.
func (rc recovery) listUnreadable(id, dir string, err error) {
	s := rc.unreadableSandbox(id, dir, err)
	rc.m.log.Error("the record of a sandbox cannot be read: it is kept, and listed as failed", "sandbox", id, "file", filepath.Join(dir, directory.Record), "error", err)
	rc.adoptKey(s)
	rc.m.list(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	rc.m.tell(s, api.EventFailed, s.info.Reason)
}

// list puts an adopted sandbox into the tables. Where another has its name, it is found by
// its id alone.
func (m *Manager) list(s *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byID[s.id] = s
	if key := (nameKey{s.tenant, s.name}); m.byName[key] == nil {
		m.byName[key] = s
	}
}

// endUnreached ends what may run of a sandbox whose instance this daemon does not have: its
// record is lost, or it could not be reached when the daemon began. The caller holds s.ops.
func (rt retrier) endUnreached(ctx context.Context, s *live) error {
	s.mu.Lock()
	needed, name := s.unreached, s.info.Engine
	s.mu.Unlock()
	if !needed {
		return nil
	}
	engines := rt.m.opts.Engines
	if name != "" {
		eng := rt.m.engineNamed(name)
		if eng == nil {
			return api.Errorf(api.CodeUnavailable, "sandbox %s needs engine %q, which is not in this build", s.id, name)
		}
		engines = []engine.Engine{eng}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, eng := range engines {
		if err := eng.Sweep(ctx, rt.m.opts.Owner, func(id string) bool { return id != s.id }); err != nil {
			return fmt.Errorf("end what engine %s runs of sandbox %s: %w", eng.Name(), s.id, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreached, s.engineState = false, nil
	s.finish(ending{reason: "the sandbox was ended"})
	return nil
}

// dropHolds gives up every named workspace that a sandbox has whose record could not be
// read, so that it is not known which.
func (m *Manager) dropHolds(s *live) error {
	s.mu.Lock()
	needed := s.making == stage.CreationUnreadable
	s.mu.Unlock()
	if !needed || m.opts.Workspaces == nil {
		return nil
	}
	return m.opts.Workspaces.DropHolder(m.opts.Owner, s.id)
}

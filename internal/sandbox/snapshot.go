package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// snapshotTimeout bounds the making of a snapshot. A stop, a kill and a removal
	// of the sandbox end it at once.
	snapshotTimeout = 15 * time.Minute
	// maxSnapshotFiles bounds the files of a workspace that is copied.
	maxSnapshotFiles = 2_000_000
)

// Snapshot makes a snapshot of the files of a sandbox. While it is made a running
// sandbox is as one that is paused. A sandbox that has ended has its workspace only.
// On error nothing is left of it.
func (m *Manager) Snapshot(ctx context.Context, caller policy.Caller, ref string, permit policy.SnapshotPermit) (api.Snapshot, error) {
	if !permit.Valid() {
		return api.Snapshot{}, api.Errorf(api.CodeDenied, "no policy has granted this snapshot")
	}
	s, err := m.waker.find(ctx, caller, policy.VerbSnapshot, ref)
	if err != nil {
		return api.Snapshot{}, err
	}
	defer s.use()()
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	scope, left, err := snapshot.ScopeOf(s.snapshot(), permit.Request().Scope)
	if err != nil {
		return api.Snapshot{}, err
	}
	if s.snapshot().State == api.StateRunning {
		if err := (handle{m, s}).SyncFiles(ctx, true); err != nil {
			return api.Snapshot{}, err
		}
	}
	draft, abort, err := beginSnapshot(m, s)
	if err != nil {
		return api.Snapshot{}, err
	}
	defer abort()
	t := &taking{m: m, s: s, draft: draft, permit: permit, info: s.snapshot()}
	t.snap = api.Snapshot{
		ID: draft.ID, Name: cmp.Or(permit.Request().Name, draft.ID), Tenant: s.tenant, Scope: scope, Sandbox: s.id,
		Image: t.info.Image, ImageDigest: t.info.ImageDigest, WorkspacePath: t.info.Workspace.Path,
		Labels: permit.Request().Labels, Left: left, CreatedAt: now(),
	}
	if err := t.take(ctx); err != nil {
		return api.Snapshot{}, diskError(s, "copied", err)
	}
	t.snap.SizeBytes = t.snap.RootBytes + t.snap.WorkspaceBytes
	count, bytes := permit.Max()
	if err := m.at(ctx, "before snapshot"); err != nil {
		return api.Snapshot{}, err
	}
	if err := draft.Commit(t.snap, snapshot.Quota{Count: count, Bytes: bytes}); err != nil {
		return api.Snapshot{}, diskError(s, "copied", err)
	}
	return t.snap, nil
}

// beginSnapshot begins a snapshot of a sandbox. The caller calls abort, which does nothing after the commit.
func beginSnapshot(m *Manager, s *live) (draft *snapshot.Draft, abort func(), err error) {
	if draft, err = m.opts.Snapshots.Begin(s.tenant); err != nil {
		return nil, nil, diskError(s, "copied", err)
	}
	return draft, func() {
		if err := draft.Abort(); err != nil {
			m.log.Error("what was made of a snapshot is left", "sandbox", s.id, "error", err)
		}
	}, nil
}

// interruptible makes the end of a sandbox call cancel, until the returned function
// is called.
func (s *live) interruptible(cancel context.CancelFunc) (undo func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupt = cancel; s.enders > 0 {
		cancel()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.interrupt = nil
	}
}

// interruptSnapshot ends what keeps the sandbox from ending, also what begins before
// the returned function is called.
func (s *live) interruptSnapshot() (undo func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enders++
	if s.interrupt != nil {
		s.interrupt()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.enders--
	}
}

// taking is a snapshot that is being made.
type taking struct {
	m      *Manager
	s      *live
	draft  *snapshot.Draft
	permit policy.SnapshotPermit
	info   api.Sandbox
	snap   api.Snapshot
}

func (t *taking) take(ctx context.Context) error {
	if t.snap.Scope != api.SnapshotWorkspace {
		t.snap.Consistent = true
		return t.takeRoot(ctx)
	}
	if t.info.State != api.StateRunning {
		t.snap.Consistent = true // nothing moves
		return t.copyWorkspace(ctx)
	}
	t.s.mu.Lock()
	p, ok := t.s.inst.(engine.Pauser)
	t.s.mu.Unlock()
	var err error
	if ok {
		err = t.m.pauser.pauseForNow(ctx, t.s, p)
	}
	if !ok || errors.Is(err, api.ErrUnsupported) {
		return t.copyWorkspace(ctx) // and Consistent stays false
	}
	if err != nil {
		return err
	}
	t.snap.Consistent = true
	err = t.copyWorkspace(ctx)
	if rerr := t.m.pauser.resumeNow(ctx, t.s, p); rerr != nil {
		t.m.log.Error("go on after a snapshot", "sandbox", t.s.id, "error", rerr)
		err = cmp.Or(err, rerr)
	}
	return err
}

// takeRoot writes the root, and copies the workspace in the same quiesce.
func (t *taking) takeRoot(ctx context.Context) error {
	f, err := t.draft.RootTar()
	if err != nil {
		return err
	}
	defer f.Close()
	out := &snapshot.Rationed{W: f, Left: t.permit.BytesLeft()}
	write, err := t.m.pauser.quiesce(ctx, t.s, out)
	if err != nil {
		return err
	}
	if t.snap.Scope == api.SnapshotFiles {
		err = t.copyWorkspace(ctx)
		out.Left -= t.snap.WorkspaceBytes
	}
	if err := t.m.pauser.goOn(ctx, t.s, write, err); err != nil {
		return err
	}
	t.snap.RootBytes = out.Written
	return errors.Join(f.Sync(), f.Close())
}

// copyWorkspace copies the files of the workspace, through its layer if it has one.
func (t *taking) copyWorkspace(ctx context.Context) error {
	lower, err := t.m.workspaces.open(t.s)
	if err != nil {
		return err
	}
	defer lower.Close()
	var layer *workspace.Layer
	if t.info.Workspace.Layered {
		if layer, err = workspace.OpenLayer(t.s.layerPath(), lower); err != nil {
			return err
		}
	}
	if err := t.m.at(ctx, "copying"); err != nil {
		return err
	}
	limits := workspace.CopyLimits{Bytes: t.permit.BytesLeft(), Entries: maxSnapshotFiles}
	report, err := lower.CopyTo(ctx, layer, t.draft.Files(), limits)
	if report.Bytes > limits.Bytes {
		return snapshot.OverRation()
	}
	if err != nil {
		return err
	}
	t.snap.WorkspaceBytes = report.Bytes
	for _, skip := range report.Left {
		skip.Path = path.Join(t.info.Workspace.Path, skip.Path)
		t.snap.Left = append(t.snap.Left, skip)
	}
	return nil
}

// snapshotOf protects a snapshot from removal until it is released.
func snapshotOf(m *Manager, snap api.Snapshot) (*snapshot.Use, error) {
	use, err := m.opts.Snapshots.Use(snap.Tenant, snap.ID)
	if errors.Is(err, fs.ErrNotExist) {
		e := policy.NoSnapshot(snap.Name)
		e.Field = "snapshot"
		return nil, e.WithCause(err)
	}
	return use, err
}

// useSnapshot protects the snapshot of a sandbox from removal until the sandbox is created, and
// starts the root from the snapshot's.
func (c *creation) useSnapshot(context.Context) error {
	snap, ok := c.permit.Snapshot()
	if !ok {
		return nil
	}
	if snap.Scope == api.SnapshotMemory {
		return api.Errorf(api.CodeInternal, "snapshot %s has memory, which needs CreateFromMemory", snap.ID)
	}
	use, err := snapshotOf(c.m, snap)
	if err != nil {
		return err
	}
	c.staged.Push("snapshot", func(context.Context) error { use.Release(); return nil })
	c.snapshot = use
	root := use.RootTar()
	if root == "" {
		return nil
	}
	if info := c.s.snapshot(); !snapshot.FitsRoot(snap, info) {
		e := api.Errorf(api.CodeState, "snapshot %s changes the root of image %s as it was, %s, and image %s is %s", snap.Name, snap.Image, snap.ImageDigest, info.Image, info.ImageDigest)
		e.Field = "image"
		return e.WithHint("leave image out: the snapshot's own image is kept as long as the snapshot")
	}
	c.plan.Root.Upper = root
	return nil
}

// files is where the files are that the workspace begins with; empty is an empty one.
func (c *creation) files() string {
	switch {
	case c.fork != nil:
		return c.fork.files.Files()
	case c.snapshot != nil:
		return c.snapshot.Files()
	}
	return ""
}

// restoreFiles copies the files of the snapshot, or of the parent of a fork, to an empty workspace. Other callers do not see the
// files of a named workspace before the sandbox is created, and never see them if it is not.
func (c *creation) restoreFiles(ctx context.Context, dir *workspace.Dir) error {
	files := c.files()
	if files == "" {
		return nil
	}
	ws, store := c.s.info.Workspace, c.m.opts.Workspaces
	if err := dir.Empty(ctx); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			e.Field = "workspace.name"
		}
		return err
	}
	if ws.Name != "" {
		if err := store.BeginFill(c.s.tenant, ws.Name); err != nil {
			return err
		}
		c.filling = true
		c.s.undo.Push("files of the snapshot", func(context.Context) error {
			dir, err := store.Open(c.s.tenant, ws.Name, filepath.Join(c.s.dir, directory.Staging))
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			return dir.Close() // others find the directory empty until it is complete
		})
	}
	if err := c.m.at(ctx, "filling"); err != nil {
		return err
	}
	err := dir.FillFrom(ctx, files, workspace.CopyLimits{})
	if err != nil {
		return diskError(c.s, "copied", fault.NoRoom(ws, err))
	}
	return nil
}

// endFill makes the files of the snapshot those of a named workspace.
func (c *creation) endFill() error {
	if !c.filling {
		return nil
	}
	return c.m.opts.Workspaces.EndFill(c.s.tenant, c.s.info.Workspace.Name)
}

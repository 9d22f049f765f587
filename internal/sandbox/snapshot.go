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
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
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
	scope, left, err := s.snapshotScope(permit.Request().Scope)
	if err != nil {
		return api.Snapshot{}, err
	}
	if s.snapshot().State == api.StateRunning {
		if err := (handle{m, s}).SyncFiles(ctx, true); err != nil {
			return api.Snapshot{}, err
		}
	}
	draft, err := m.opts.Snapshots.Begin(s.tenant)
	if err != nil {
		return api.Snapshot{}, diskError(s, "copied", err)
	}
	defer func() {
		if err := draft.Abort(); err != nil {
			m.log.Error("what was made of a snapshot is left", "sandbox", s.id, "error", err)
		}
	}()
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

// snapshotScope returns the part of the requested scope that is possible for a sandbox, and what is
// left out and why.
func (s *live) snapshotScope(asked api.SnapshotScope) (api.SnapshotScope, []api.TarSkip, error) {
	info := s.snapshot()
	var left []api.TarSkip
	for _, mount := range info.Mounts {
		left = append(left, api.TarSkip{Path: mount.Target, Reason: "a directory of the host"})
	}
	scope := cmp.Or(asked, api.SnapshotFiles)
	switch info.State {
	case api.StateRunning, api.StatePaused, api.StateStopped, api.StateLost:
	default:
		return scope, nil, notRunning(info)
	}
	if what := outsideSnapshots(info.Workspace); what != "" {
		if scope == api.SnapshotWorkspace {
			return scope, nil, api.Errorf(api.CodeState, "the workspace of sandbox %s is %s, which is in no snapshot", info.Name, what).
				WithHint("copy its files, or take a snapshot of the root")
		}
		left = append(left, api.TarSkip{Path: info.Workspace.Path, Reason: what})
		scope = api.SnapshotRoot
	}
	if scope == api.SnapshotWorkspace {
		return scope, left, nil
	}
	ended := info.State == api.StateStopped || info.State == api.StateLost
	if !ended && !info.ReadOnlyRoot {
		return scope, left, nil
	}
	if asked != "" || scope == api.SnapshotRoot {
		if ended {
			return scope, nil, rootGone(info)
		}
		return scope, nil, api.Errorf(api.CodeState, "the root of sandbox %s is read-only: nothing was changed in it", info.Name).
			WithHint("take a snapshot of the workspace")
	}
	reason := "nothing was changed: it is read-only"
	if ended {
		reason = "it can be read only while the sandbox runs"
	}
	return api.SnapshotWorkspace, append(left, api.TarSkip{Path: "/", Reason: reason}), nil
}

// outsideSnapshots says what a workspace is that is in no snapshot; empty is another.
func outsideSnapshots(ws api.Workspace) string {
	switch {
	case ws.Dir != "":
		return "a directory of the host"
	case ws.Volume:
		return "a volume of the engine's"
	}
	return ""
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

// useSnapshot protects the snapshot of a sandbox from removal until the sandbox is created, and
// starts the root from the snapshot's.
func (c *creation) useSnapshot(context.Context) error {
	snap, ok := c.permit.Snapshot()
	if !ok {
		return nil
	}
	use, err := c.m.opts.Snapshots.Use(snap.Tenant, snap.ID)
	if errors.Is(err, fs.ErrNotExist) {
		e := policy.NoSnapshot(snap.Name)
		e.Field = "snapshot"
		return e.WithCause(err)
	}
	if err != nil {
		return err
	}
	c.staged.Push("snapshot", func(context.Context) error { use.Release(); return nil })
	c.snapshot = use
	root := use.RootTar()
	if root == "" {
		return nil
	}
	if info := c.s.snapshot(); !fitsRoot(snap, info) {
		e := api.Errorf(api.CodeState, "snapshot %s changes the root of image %s as it was, %s, and image %s is %s", snap.Name, snap.Image, snap.ImageDigest, info.Image, info.ImageDigest)
		e.Field = "image"
		return e.WithHint("leave image out: the snapshot's own image is kept as long as the snapshot")
	}
	c.plan.Root.Upper = root
	return nil
}

// fitsRoot reports whether a sandbox can start from the root of a snapshot. The root belongs to one
// image, by digest. The host image is the machine's present files, and most of it, which its mounts
// show, has no digest: changes of its root apply on top of that.
func fitsRoot(snap api.Snapshot, sb api.Sandbox) bool {
	if snap.Image == api.DefaultImage {
		return sb.Image == api.DefaultImage
	}
	return sb.ImageDigest == snap.ImageDigest
}

// errNoRoom is a workspace whose own bounds are too small.
var errNoRoom = errors.New("its bounds are reached")

// restoreFiles copies the files of the snapshot to an empty workspace. Other callers do not see the
// files of a named workspace before the sandbox is created, and never see them if it is not.
func (c *creation) restoreFiles(ctx context.Context, dir *workspace.Dir) error {
	if c.snapshot == nil || c.snapshot.Files() == "" {
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
	err := dir.FillFrom(ctx, c.snapshot.Files(), workspace.CopyLimits{})
	if err != nil {
		return diskError(c.s, "copied", noRoom(ws, err))
	}
	return nil
}

// noRoom marks an error of writing to a workspace that has bounds and reached them.
func noRoom(ws api.Workspace, err error) error {
	if ws.Enforced == api.HeldByKernel && hostfile.IsFull(err) {
		return errors.Join(errNoRoom, err)
	}
	return err
}

// endFill makes the files of the snapshot those of a named workspace.
func (c *creation) endFill() error {
	if !c.filling {
		return nil
	}
	return c.m.opts.Workspaces.EndFill(c.s.tenant, c.s.info.Workspace.Name)
}

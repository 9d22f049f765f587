package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/changes"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// layerDir is where a layered workspace keeps what the sandbox writes.
const layerDir = "layer"

func (s *live) layerPath() string { return filepath.Join(s.dir, layerDir) }

// stageWorkspace takes over the directory of the workspace, which is the sandbox's
// own: it gets the files of the snapshot, if there is one, and a layer above it, if
// one was asked for.
func (c *creation) stageWorkspace(ctx context.Context, dir *workspace.Dir) error {
	ws := c.s.info.Workspace
	if err := c.restoreFiles(ctx, dir); err != nil {
		_ = dir.Close()
		return err
	}
	if !ws.Layered {
		if err := dir.DropLayer(ctx); err != nil {
			return errors.Join(err, dir.Close())
		}
		return c.stageDir(dir, ws.Path, ws.ReadOnly)
	}
	defer dir.Close()
	layer, err := c.openLayer(ctx, dir)
	if err != nil {
		return diskError(c.s, "layered", fault.NoRoom(ws, err))
	}
	staged, err := layer.Stage(dir, filepath.Join(c.s.dir, directory.Staging))
	if err != nil {
		return err
	}
	c.staged.Push("staged layer", func(context.Context) error { return staged.Close() })
	c.plan.Mounts = append(c.plan.Mounts, engine.Mount{Source: staged.Path, Target: ws.Path})
	return nil
}

// openLayer finds the layer of a sandbox that is started again, or makes one.
func (c *creation) openLayer(ctx context.Context, dir *workspace.Dir) (*workspace.Layer, error) {
	if c.from != nil {
		if layer, err := workspace.OpenLayer(c.s.layerPath(), dir); !errors.Is(err, fs.ErrNotExist) {
			return layer, err
		}
	}
	return workspace.MakeLayer(ctx, c.s.layerPath(), dir)
}

// layers reads and settles what sandboxes changed: the layer over a workspace, and the root.
type layers struct{ m *Manager }

// layered is a sandbox's workspace and the layer above it.
type layered struct {
	*workspace.Layer
	lower *workspace.Dir
}

// open finds the layer of a sandbox. The caller closes lower.
func (ls layers) open(s *live) (layered, error) {
	info := s.snapshot()
	if !info.Workspace.Layered {
		return layered{}, stage.NotLayered(info.Name)
	}
	lower, err := ls.m.workspaces.open(s)
	if err != nil {
		return layered{}, err
	}
	layer, err := workspace.OpenLayer(s.layerPath(), lower)
	if err != nil {
		return layered{}, errors.Join(fmt.Errorf("open layer of sandbox %s: %w", s.id, err), lower.Close())
	}
	return layered{layer, lower}, nil
}

// CommitWorkspace makes what a sandbox that has ended wrote to its layered workspace
// part of it, and says how much that was. A commit that has begun is finished, by
// the next daemon if need be.
func (m *Manager) CommitWorkspace(ctx context.Context, caller policy.Caller, ref string) (api.Diff, error) {
	return m.layers.settle(ctx, caller, policy.VerbCommit, ref, func(l layered) error {
		if err := m.at(ctx, "before commit"); err != nil {
			return err
		}
		return l.Commit(ctx, l.lower)
	})
}

// RollbackWorkspace forgets what a sandbox that has ended wrote to its layered
// workspace, and says how much that was.
func (m *Manager) RollbackWorkspace(ctx context.Context, caller policy.Caller, ref string) (api.Diff, error) {
	return m.layers.settle(ctx, caller, policy.VerbRollback, ref, func(l layered) error { return l.Discard(l.lower) })
}

// settle does one of the two. A mount cannot change what it is made of, so
// nothing of the sandbox may run any more.
func (ls layers) settle(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string, do func(layered) error) (api.Diff, error) {
	s, err := ls.m.find(caller, verb, ref)
	if err != nil {
		return api.Diff{}, err
	}
	if err := s.mayOpenLayer(); err != nil { // before it waits for a stop
		return api.Diff{}, err
	}
	s.lockOps(ctx)
	defer s.ops.Unlock()
	if err := s.mayOpenLayer(); err != nil {
		return api.Diff{}, err
	}
	if err := ls.m.releaseRest(ctx, s); err != nil {
		return api.Diff{}, err
	}
	l, err := ls.open(s)
	if err != nil {
		return api.Diff{}, err
	}
	defer l.lower.Close()
	d := api.Diff{Scope: api.DiffWorkspace, Changes: []api.Change{}}
	err = l.Walk(ctx, l.lower, func(c api.Change) error { changes.Tally(&d, c); return nil })
	// What cannot be walked can still be forgotten; the counts are of what was seen.
	if err != nil && (verb != policy.VerbRollback || api.CodeOf(err) != api.CodeTooLarge) {
		return api.Diff{}, diskError(s, "compared", err)
	}
	if err := do(l); err != nil {
		return api.Diff{}, diskError(s, "settled", err)
	}
	return d, nil
}

// mayOpenLayer says why a layer cannot be committed or rolled back now.
func (s *live) mayOpenLayer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed || s.teardown.Removing() {
		return policy.NoSandbox(s.info.Name)
	}
	return stage.MaySettle(s.info)
}

// finishCommit goes on with a commit in which a daemon died. The caller holds s.ops,
// or is the only one who knows s.
func (ls layers) finishCommit(s *live) error {
	info := s.snapshot()
	if !info.Workspace.Layered || info.State == api.StateRunning || info.State.Held() {
		return nil // a commit begins when it has ended
	}
	lower, err := ls.m.workspaces.open(s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has gone with its layer
	}
	if err != nil {
		return fmt.Errorf("finish commit of sandbox %s: %w", s.id, err)
	}
	defer lower.Close()
	layer, err := workspace.OpenLayer(s.layerPath(), lower)
	if err != nil || !layer.Unfinished() {
		return nil // it was never made, or nothing was begun
	}
	if err := layer.Commit(ls.m.ctx, lower); err != nil {
		return fmt.Errorf("finish commit of sandbox %s: %w", s.id, err)
	}
	ls.m.log.Info("finished a commit that was interrupted", "sandbox", s.id)
	return nil
}

// drop removes the layer of a sandbox that is being removed from the disk of its workspace,
// where it would use space of other sandboxes. Elsewhere it is removed with the sandbox's
// directory. The caller holds s.ops.
func (ls layers) drop(ctx context.Context, s *live) error {
	ws := s.snapshot().Workspace
	if !ws.Layered || ws.Name == "" || ws.Enforced != api.HeldByKernel || !s.isAnnounced() {
		return nil
	}
	lower, err := ls.m.workspaces.open(s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("drop layer of sandbox %s: %w", s.id, err)
	}
	return errors.Join(lower.DropLayer(ctx), lower.Close())
}

// diskError classifies what went wrong with files of the host.
func diskError(s *live, what string, err error) error {
	if errors.Is(err, api.ErrSandboxLost) {
		return s.explain(err)
	}
	return fault.Disk(s.snapshot(), what, err)
}

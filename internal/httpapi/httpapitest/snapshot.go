package httpapitest

import (
	"context"
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Diff finds that one file was added, one changed and one removed.
func (c *Core) Diff(ctx context.Context, caller core.Caller, ref string, o cloche.DiffOptions) (cloche.Diff, error) {
	if _, err := c.Get(ctx, caller, ref); err != nil {
		return cloche.Diff{}, err
	}
	d := cloche.Diff{Scope: cloche.DiffWorkspace, Added: 1, Changed: 1, Removed: 1, Bytes: 30}
	if o.Scope != "" {
		d.Scope = o.Scope
	}
	d.Changes = []cloche.Change{
		{Path: "a", Kind: cloche.ChangeAdded, Type: cloche.TypeFile, Size: 10},
		{Path: "b\uFFFD", PathBytes: []byte("b\xff"), Kind: cloche.ChangeChanged, Type: cloche.TypeFile, Size: 20, OldSize: 5},
		{Path: "c", Kind: cloche.ChangeRemoved, Type: cloche.TypeDir},
	}
	if o.Cursor == "two" {
		d.Changes = d.Changes[2:]
	} else if o.Limit > 0 && o.Limit < 3 {
		d.Changes, d.Next = d.Changes[:2], "two"
	}
	return d, nil
}

// CommitWorkspace wants a sandbox that has stopped.
func (c *Core) CommitWorkspace(ctx context.Context, caller core.Caller, ref string) (cloche.Diff, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.Diff{}, err
	}
	if sb.State != cloche.StateStopped {
		return cloche.Diff{}, cloche.Errorf(cloche.CodeState, "sandbox %s is %s", ref, sb.State).WithHint("stop it")
	}
	return cloche.Diff{Scope: cloche.DiffWorkspace, Added: 1, Changed: 1, Removed: 1, Bytes: 30}, nil
}

// RollbackWorkspace does as CommitWorkspace.
func (c *Core) RollbackWorkspace(ctx context.Context, caller core.Caller, ref string) (cloche.Diff, error) {
	return c.CommitWorkspace(ctx, caller, ref)
}

// CreateSnapshot remembers that it was asked.
func (c *Core) CreateSnapshot(ctx context.Context, caller core.Caller, ref string, req cloche.SnapshotRequest) (cloche.Snapshot, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.Snapshot{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	snap := cloche.Snapshot{
		ID: fmt.Sprintf("sn-%d", c.serial), Name: req.Name, Tenant: caller.Tenant, Scope: req.Scope, Sandbox: sb.ID, Image: sb.Image,
		WorkspacePath: sb.Workspace.Path, SizeBytes: 30, RootBytes: 10, WorkspaceBytes: 20, Consistent: true, Labels: req.Labels,
		Left: []cloche.TarSkip{{Path: "/srv/data", Reason: "a directory of the host"}}, CreatedAt: Epoch(),
	}
	if snap.Name == "" {
		snap.Name = snap.ID
	}
	if snap.Scope == "" {
		snap.Scope = cloche.SnapshotFiles
	}
	for _, other := range c.snapshots {
		if other.Name == snap.Name {
			return cloche.Snapshot{}, cloche.Errorf(cloche.CodeExists, "a snapshot named %q exists", snap.Name)
		}
	}
	c.snapshots = append([]cloche.Snapshot{snap}, c.snapshots...)
	return snap, nil
}

// Snapshots lists them.
func (c *Core) Snapshots(context.Context, core.Caller) (cloche.SnapshotList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cloche.SnapshotList{Snapshots: slices.Clone(c.snapshots)}, nil
}

// GetSnapshot finds one.
func (c *Core) GetSnapshot(_ context.Context, _ core.Caller, ref string) (cloche.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, snap := range c.snapshots {
		if snap.ID == ref || snap.Name == ref {
			return snap, nil
		}
	}
	return cloche.Snapshot{}, cloche.Errorf(cloche.CodeNotFound, "there is no snapshot %q", ref).WithHint("list them")
}

// RemoveSnapshot forgets one.
func (c *Core) RemoveSnapshot(ctx context.Context, caller core.Caller, ref string) error {
	snap, err := c.GetSnapshot(ctx, caller, ref)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = slices.DeleteFunc(c.snapshots, func(s cloche.Snapshot) bool { return s.ID == snap.ID })
	return nil
}

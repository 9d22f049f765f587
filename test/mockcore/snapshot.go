package mockcore

import (
	"context"
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Diff finds that one file was added, one changed and one removed.
func (c *Core) Diff(ctx context.Context, caller core.Caller, ref string, o api.DiffOptions) (api.Diff, error) {
	if _, err := c.Get(ctx, caller, ref); err != nil {
		return api.Diff{}, err
	}
	d := api.Diff{Scope: api.DiffWorkspace, Added: 1, Changed: 1, Removed: 1, Bytes: 30}
	if o.Scope != "" {
		d.Scope = o.Scope
	}
	d.Changes = []api.Change{
		{Path: "a", Kind: api.ChangeAdded, Type: api.TypeFile, Size: 10},
		{Path: "b\uFFFD", PathBytes: []byte("b\xff"), Kind: api.ChangeChanged, Type: api.TypeFile, Size: 20, OldSize: 5},
		{Path: "c", Kind: api.ChangeRemoved, Type: api.TypeDir},
	}
	if o.Cursor == "two" {
		d.Changes = d.Changes[2:]
	} else if o.Limit > 0 && o.Limit < 3 {
		d.Changes, d.Next = d.Changes[:2], "two"
	}
	return d, nil
}

// CommitWorkspace wants a sandbox that has stopped.
func (c *Core) CommitWorkspace(ctx context.Context, caller core.Caller, ref string) (api.Diff, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.Diff{}, err
	}
	if sb.State != api.StateStopped {
		return api.Diff{}, api.Errorf(api.CodeState, "sandbox %s is %s", ref, sb.State).WithHint("stop it")
	}
	return api.Diff{Scope: api.DiffWorkspace, Added: 1, Changed: 1, Removed: 1, Bytes: 30}, nil
}

// RollbackWorkspace does as CommitWorkspace.
func (c *Core) RollbackWorkspace(ctx context.Context, caller core.Caller, ref string) (api.Diff, error) {
	return c.CommitWorkspace(ctx, caller, ref)
}

// CreateSnapshot remembers that it was asked.
func (c *Core) CreateSnapshot(ctx context.Context, caller core.Caller, ref string, req api.SnapshotRequest) (api.Snapshot, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.Snapshot{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	snap := api.Snapshot{
		ID: fmt.Sprintf("sn-%d", c.serial), Name: req.Name, Tenant: caller.Tenant, Scope: req.Scope, Sandbox: sb.ID, Image: sb.Image,
		WorkspacePath: sb.Workspace.Path, SizeBytes: 30, RootBytes: 10, WorkspaceBytes: 20, Consistent: true, Labels: req.Labels,
		Left: []api.TarSkip{{Path: "/srv/data", Reason: "a directory of the host"}}, CreatedAt: Epoch(),
	}
	if snap.Name == "" {
		snap.Name = snap.ID
	}
	if snap.Scope == "" {
		snap.Scope = api.SnapshotFiles
	}
	for _, other := range c.snapshots {
		if other.Name == snap.Name {
			return api.Snapshot{}, api.Errorf(api.CodeExists, "a snapshot named %q exists", snap.Name)
		}
	}
	c.snapshots = append([]api.Snapshot{snap}, c.snapshots...)
	return snap, nil
}

// Snapshots lists them.
func (c *Core) Snapshots(context.Context, core.Caller) (api.SnapshotList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return api.SnapshotList{Snapshots: slices.Clone(c.snapshots)}, nil
}

// GetSnapshot finds one.
func (c *Core) GetSnapshot(_ context.Context, _ core.Caller, ref string) (api.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, snap := range c.snapshots {
		if snap.ID == ref || snap.Name == ref {
			return snap, nil
		}
	}
	return api.Snapshot{}, api.Errorf(api.CodeNotFound, "there is no snapshot %q", ref).WithHint("list them")
}

// RemoveSnapshot forgets one.
func (c *Core) RemoveSnapshot(ctx context.Context, caller core.Caller, ref string) error {
	snap, err := c.GetSnapshot(ctx, caller, ref)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = slices.DeleteFunc(c.snapshots, func(s api.Snapshot) bool { return s.ID == snap.ID })
	return nil
}

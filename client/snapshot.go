package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// Diff returns one page of the changes of a sandbox: in its layered workspace, whether it is
// running or not, or in its root while it is running.
func (c *Client) Diff(ctx context.Context, ref string, o api.DiffOptions) (api.Diff, error) {
	var d api.Diff
	p, err := sandboxPath(ref, "/diff")
	if err != nil {
		return d, err
	}
	q := url.Values{}
	if o.Scope != "" {
		q.Set("scope", string(o.Scope))
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Cursor != "" {
		q.Set("cursor", o.Cursor)
	}
	return d, c.call(ctx, http.MethodGet, p, q, nil, &d)
}

// DiffAll iterates over all changes. It ends after the first error. Each page shows the state at
// the time of its request.
func (c *Client) DiffAll(ctx context.Context, ref string, o api.DiffOptions) iter.Seq2[api.Change, error] {
	return pages(o.Cursor, func(cursor string) ([]api.Change, string, error) {
		o := o
		o.Cursor = cursor
		d, err := c.Diff(ctx, ref, o)
		return d.Changes, d.Next, err
	})
}

// CommitWorkspace makes the changes of an ended sandbox to its layered workspace permanent. The
// answer has counts and no list.
func (c *Client) CommitWorkspace(ctx context.Context, ref string) (api.Diff, error) {
	return c.settle(ctx, ref, "/commit")
}

// RollbackWorkspace discards the changes of an ended sandbox to its layered workspace. The answer
// has counts and no list.
func (c *Client) RollbackWorkspace(ctx context.Context, ref string) (api.Diff, error) {
	return c.settle(ctx, ref, "/rollback")
}

func (c *Client) settle(ctx context.Context, ref, verb string) (api.Diff, error) {
	var d api.Diff
	p, err := sandboxPath(ref, verb)
	if err != nil {
		return d, err
	}
	return d, c.call(ctx, http.MethodPost, p, nil, nil, &d)
}

// CreateSnapshot creates a snapshot of the files of a sandbox, whose processes are paused in the
// meantime. SandboxSpec.Snapshot creates a sandbox from it.
func (c *Client) CreateSnapshot(ctx context.Context, ref string, req api.SnapshotRequest) (api.Snapshot, error) {
	var snap api.Snapshot
	p, err := sandboxPath(ref, "/snapshots")
	if err != nil {
		return snap, err
	}
	return snap, c.call(ctx, http.MethodPost, p, nil, req, &snap)
}

// Snapshots returns the caller's snapshots, newest first.
func (c *Client) Snapshots(ctx context.Context) (api.SnapshotList, error) {
	var l api.SnapshotList
	return l, c.call(ctx, http.MethodGet, "/snapshots", nil, nil, &l)
}

// GetSnapshot returns a snapshot by ID or name.
func (c *Client) GetSnapshot(ctx context.Context, ref string) (api.Snapshot, error) {
	var snap api.Snapshot
	p, err := snapshotPath(ref)
	if err != nil {
		return snap, err
	}
	return snap, c.call(ctx, http.MethodGet, p, nil, nil, &snap)
}

// RemoveSnapshot removes a snapshot. Sandboxes that were created from it keep their copies.
func (c *Client) RemoveSnapshot(ctx context.Context, ref string) error {
	p, err := snapshotPath(ref)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, nil, nil, nil)
}

// snapshotPath returns the URL path of a snapshot.
func snapshotPath(ref string) (string, error) {
	part, err := pathPart("ref", "snapshot", ref)
	return "/snapshots/" + part, err
}

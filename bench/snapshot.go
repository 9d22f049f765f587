//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// Subjects of the group snapshot: a workspace of 100 MB in 400 files, with 2000 small
// ones.
const (
	snapshotCreate = "snapshot, 100 MB workspace"
	snapshotStart  = "create from it → first output"
	snapshotFresh  = "create with nothing → first output"
	snapshotCopy   = "cp -a of the same files"
)

// snapshotFill makes files that cannot be compressed.
const snapshotFill = `
import os
for i in range(400):
    os.makedirs(f"d{i % 20}", exist_ok=True)
    with open(f"d{i % 20}/f{i}", "wb") as f: f.write(os.urandom(256000 - 10240))
for i in range(2000):
    with open(f"d{i % 20}/s{i}", "wb") as f: f.write(os.urandom(1024))
os.sync()
`

// snapshots measures how long a sandbox is paused for a snapshot, and what it
// costs to begin with one.
func (b *bench) snapshots(ctx context.Context) (err error) {
	p, err := b.needDaemon(ctx)
	if err != nil {
		return err
	}
	c := p.app.client
	spec := p.app.spec()
	spec.Workspace = nil
	sb, err := c.Create(ctx, spec)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	if res, err := sb.Exec(ctx, "python3", "-c", snapshotFill); err != nil || !res.OK() {
		return fmt.Errorf("fill the workspace: %w: %s", err, tail(string(res.Stderr)))
	}
	first, err := c.CreateSnapshot(ctx, sb.ID, api.SnapshotRequest{})
	if err != nil {
		return fmt.Errorf("make the snapshot to begin with: %w", err)
	}
	defer func() { err = errors.Join(err, c.RemoveSnapshot(context.WithoutCancel(ctx), first.ID)) }()
	if first.WorkspaceBytes < 95e6 {
		return fmt.Errorf("the snapshot has %d bytes", first.WorkspaceBytes)
	}
	from := spec
	from.Snapshot = first.ID
	copied := filepath.Join(b.dir, "snapshot-copy")
	// The files as a plain directory, for the floor.
	plain := filepath.Join(b.dir, "snapshot-plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		return err
	}
	fill := command(ctx, "python3", "-c", snapshotFill)
	fill.Dir = plain
	if err := fill.Run(); err != nil {
		return fmt.Errorf("fill the directory: %w", err)
	}
	series, err := rounds(ctx, b.n, []subject{
		{name: snapshotCreate, how: "CreateSnapshot over the socket, of root and workspace; removed again, not timed", run: func(ctx context.Context) (measure, error) {
			began := time.Now()
			snap, err := c.CreateSnapshot(ctx, sb.ID, api.SnapshotRequest{})
			took := time.Since(began)
			if err == nil && snap.WorkspaceBytes < 95e6 {
				err = fmt.Errorf("the snapshot has %d bytes", snap.WorkspaceBytes)
			}
			if err == nil {
				err = c.RemoveSnapshot(ctx, snap.ID)
			}
			return measure{Total: took}, err
		}},
		{name: snapshotStart, how: "Create with snapshot, and one exec; removed again, not timed", run: beginWith(c, from, true)},
		{name: snapshotFresh, how: "the same without a snapshot", run: beginWith(c, spec, false)},
		{name: snapshotCopy, how: "on the same disk, not synced", run: func(ctx context.Context) (measure, error) {
			began := time.Now()
			err := command(ctx, "cp", "-a", plain, copied).Run()
			took := time.Since(began)
			return measure{Total: took}, errors.Join(err, command(ctx, "rm", "-rf", copied).Run())
		}},
	}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return nil
}

// beginWith times a sandbox until it has shown what is in its workspace: something,
// if files is true.
func beginWith(c *client.Client, spec api.SandboxSpec, files bool) func(context.Context) (measure, error) {
	return createAndRun(c, spec, func(out string) bool { return (out != "*\n") == files }, "sh", "-c", "echo *")
}

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Subjects of the group record: what it costs that records survive a power cut.
const (
	recordReplaced = "replace a record of 4 KiB"
	recordFloor    = "write, fsync, rename and fsync of the directory"
	recordUnsynced = "write and rename"

	createOnDisk         = "create → first output, home on the disk"
	createInMemory       = "create → first output, home in memory"
	createOnDiskNative   = "create → first output, native, home on the disk"
	createInMemoryNative = "create → first output, native, home in memory"
)

// memoryDir is a filesystem in which a sync costs nothing.
const memoryDir = "/dev/shm"

// records measures one replaced record, and how much of a create its records take. A
// home in memory needs no sync, so the difference of the creates holds every sync, and
// whatever else the disk costs.
func (b *bench) records(ctx context.Context) error {
	dir := filepath.Join(b.dir, "records")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	content := make([]byte, 4096)
	replace := func(f func() error) func(context.Context) (measure, error) {
		return func(context.Context) (measure, error) {
			began := time.Now()
			err := f()
			return measure{Total: time.Since(began)}, err
		}
	}
	series, err := rounds(ctx, b.n, []subject{
		{name: recordReplaced, how: "as the daemon replaces each of its records", row: 10, run: replace(func() error { return hostfile.Replace(root, "ours", content) })},
		{name: recordFloor, how: "the same four calls and no more", row: 10, run: replace(func() error { return renameSynced(dir, content, true) })},
		{name: recordUnsynced, how: "the same without the two syncs", row: 10, run: replace(func() error { return renameSynced(dir, content, false) })},
	}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	if err := b.createsByHome(ctx); err != nil {
		return err
	}
	b.report.judge(goals())
	return nil
}

// createsByHome times creates of two daemons of one executable, in turn, whose homes are on
// the disk and in memory.
func (b *bench) createsByHome(ctx context.Context) error {
	disk, err := b.daemon(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(memoryDir, "cbench-")
	if err != nil {
		b.missing(createInMemory, err)
		return nil
	}
	b.defers(func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	memory, err := newAppIn(ctx, b, b.bin, dir)
	if err != nil {
		b.missing(createInMemory, err)
		return nil
	}
	private := func(engine string) api.SandboxSpec {
		return api.SandboxSpec{Engine: engine, Limits: api.Limits{CPUs: limitCPUs, MemoryBytes: limitMemory, Pids: limitPids}}
	}
	const how = "Create over the socket with a private workspace, and one exec; removed again, not timed"
	series, err := rounds(ctx, b.n, []subject{
		{name: createOnDisk, how: how, run: createAndEcho(disk.client, private(""))},
		{name: createInMemory, how: "the same with the daemon's home in " + memoryDir, run: createAndEcho(memory.client, private(""))},
		{name: createOnDiskNative, how: how, run: createAndEcho(disk.client, private("native"))},
		{name: createInMemoryNative, how: "the same with the daemon's home in " + memoryDir, run: createAndEcho(memory.client, private("native"))},
	}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	return err
}

// createAndEcho times a sandbox from its request to the answer of its first program.
func createAndEcho(c *client.Client, spec api.SandboxSpec) func(context.Context) (measure, error) {
	return createAndRun(c, spec, func(out string) bool { return out == word+"\n" }, "/bin/echo", word)
}

// createAndRun times a sandbox from its request to the answer of its first program, argv,
// whose output has to pass proves. The sandbox is removed afterwards, not timed.
func createAndRun(c *client.Client, spec api.SandboxSpec, proves func(out string) bool, argv ...string) func(context.Context) (measure, error) {
	return func(ctx context.Context) (m measure, err error) {
		began := time.Now()
		sb, err := c.Create(ctx, spec)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
		res, err := sb.Exec(ctx, argv...)
		m.First = time.Since(began)
		m.Total = m.First
		if err == nil && !proves(string(res.Stdout)) {
			err = fmt.Errorf("the sandbox wrote %q", tail(string(res.Stdout)))
		}
		return m, err
	}
}

// renameSynced replaces a file of dir by the system calls alone.
func renameSynced(dir string, content []byte, synced bool) error {
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(d)
	f, err := unix.Openat(d, "floor.new", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = unix.Write(f, content)
	if err == nil && synced {
		err = unix.Fsync(f)
	}
	if err := errors.Join(err, unix.Close(f)); err != nil {
		return err
	}
	if err := unix.Renameat(d, "floor.new", d, "floor"); err != nil || !synced {
		return err
	}
	return unix.Fsync(d)
}

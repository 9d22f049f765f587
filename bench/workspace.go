//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// work is one thing that is written in a workspace. The program prints how long
// that took in ms; what it wrote is removed before.
type work struct {
	name, how, code string
}

func works() []work {
	return []work{
		{"256 MiB", "256 MiB in writes of 1 MiB, not synced", `
f = os.open("f", os.O_CREAT | os.O_WRONLY)
for _ in range(256): os.write(f, block)
os.close(f)`},
		{"256 MiB synced", "the same, and one fsync at the end", `
f = os.open("f", os.O_CREAT | os.O_WRONLY)
for _ in range(256): os.write(f, block)
os.fsync(f)
os.close(f)`},
		{"200 syncs", "200 writes of 16 KiB with an fsync after each", `
f = os.open("f", os.O_CREAT | os.O_WRONLY)
for _ in range(200):
    os.write(f, block[:16384])
    os.fsync(f)
os.close(f)`},
		{"1000 files", "1000 files of 4 KiB", `
for i in range(1000):
    with open(f"f{i}", "wb") as f: f.write(block[:4096])`},
	}
}

const (
	workBefore = `
import os, time
for name in os.listdir("."): os.remove(name)
os.sync()
block = os.urandom(1 << 20)
began = time.perf_counter()
`
	workAfter = `
print((time.perf_counter() - began) * 1000)
`
)

// The kinds of workspace that are compared: without a quota and with one.
const (
	plainPrivate   = "private"
	boundedPrivate = "private, size"
	plainNamed     = "named"
	boundedNamed   = "named, size"
)

// workspaceBytes is the size of those that have one.
const workspaceBytes = 2 << 30

// writeIn names a subject of the group workspace.
func writeIn(kind, work string) string { return "write " + work + ", workspace " + kind }

// workspace compares what is written to a workspace that the kernel bounds with
// what is written to one that is a plain directory.
func (b *bench) workspace(ctx context.Context) (err error) {
	p, err := b.needDaemon(ctx)
	if err != nil {
		return err
	}
	setUp, cancel := context.WithTimeout(ctx, 4*runLimit)
	defer cancel()
	var all []subject
	for _, kind := range []struct {
		name string
		ws   api.Workspace
	}{
		{plainPrivate, api.Workspace{}},
		{boundedPrivate, api.Workspace{SizeBytes: workspaceBytes}},
		{plainNamed, api.Workspace{Name: "bench-plain", Drop: true}},
		{boundedNamed, api.Workspace{Name: "bench-bounded", Drop: true, SizeBytes: workspaceBytes}},
	} {
		spec := p.app.spec()
		spec.Workspace, spec.Limits = &kind.ws, api.Limits{}
		sb, err := p.app.client.Create(setUp, spec)
		if err != nil {
			return fmt.Errorf("create with workspace %s: %w", kind.name, err)
		}
		defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
		for _, w := range works() {
			all = append(all, subject{name: writeIn(kind.name, w.name), how: w.how, run: func(ctx context.Context) (measure, error) {
				res, err := sb.Exec(ctx, "python3", "-c", workBefore+w.code+workAfter)
				if err != nil {
					return measure{}, err
				}
				ms, err := strconv.ParseFloat(strings.TrimSpace(string(res.Stdout)), 64)
				if err != nil {
					return measure{}, fmt.Errorf("read the time that python3 printed: %w: %s", err, tail(string(res.Stderr)))
				}
				return measure{Total: time.Duration(ms * float64(time.Millisecond))}, nil
			}})
		}
	}
	series, err := rounds(ctx, b.n, all, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return nil
}

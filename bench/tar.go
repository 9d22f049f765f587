//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// tree is one directory that is packed and unpacked.
type tree struct {
	name        string
	files, each int
}

func trees() []tree {
	return []tree{{"256 MiB in one file", 1, 256 << 20}, {"256 files of 1 MiB", 256, 1 << 20}, {"5000 files of 4 KiB", 5000, 4 << 10}}
}

// trees are all of them, or, in the short form, the one that has a band.
func (b *bench) trees() []tree {
	all := trees()
	if b.check {
		return all[len(all)-1:]
	}
	return all
}

// tarOf names a subject of the group tar.
func tarOf(tool, way string, t tree) string { return tool + " " + way + ", " + t.name }

// Tools and ways of the group tar.
const (
	plainTar  = "tar"
	insideTar = "tar in the sandbox"
	clocheTar = "cloche"
	wayOut    = "pack"
	wayIn     = "unpack"
	wayAtomic = "unpack at once"
)

// tar compares archives out of a sandbox and into it with what plain tar does with
// the same directory on the same disk.
func (b *bench) tar(ctx context.Context) (err error) {
	p, err := b.needDaemon(ctx)
	if err != nil {
		return err
	}
	spec := p.app.spec()
	spec.Limits = api.Limits{}
	sb, err := p.app.client.Create(ctx, spec)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	var all []subject
	for i, t := range b.trees() {
		r := tarRun{app: p.app, sb: sb, dir: "tar" + strconv.Itoa(i), file: filepath.Join(b.dir, "tar"+strconv.Itoa(i)), tree: t}
		if err := r.fill(ctx); err != nil {
			return err
		}
		src, dst := r.local("src"), r.local("dst")
		all = append(all,
			r.subject(plainTar, wayOut, "tar -cf FILE -C DIR .", func(ctx context.Context) error {
				return command(ctx, "tar", "-cf", r.file+".out", "-C", src, ".").Run()
			}),
			r.subject(insideTar, wayOut, "the same in the sandbox, FILE in its workspace too", func(ctx context.Context) error {
				return r.inside(ctx, "tar -cf out.tar -C src . && rm out.tar")
			}),
			r.subject(clocheTar, wayOut, "TarOut over the socket into a file", r.out),
			r.subject(plainTar, wayIn, "tar -xf FILE -C DIR", func(ctx context.Context) error {
				return errors.Join(os.Mkdir(dst, 0o755), command(ctx, "tar", "-xf", r.file, "-C", dst).Run())
			}),
			r.subject(insideTar, wayIn, "the same in the sandbox, FILE in its workspace too", func(ctx context.Context) error {
				return r.inside(ctx, "mkdir dst && tar -xf in.tar -C dst")
			}),
			r.subject(clocheTar, wayIn, "TarIn over the socket from a file", func(ctx context.Context) error {
				return r.in(ctx, api.TarInOptions{})
			}),
			r.subject(clocheTar, wayAtomic, "the same with atomic", func(ctx context.Context) error {
				return r.in(ctx, api.TarInOptions{Atomic: true})
			}),
		)
	}
	if b.check {
		all = slices.DeleteFunc(all, func(s subject) bool { return !held(s.name) })
		for i := range all {
			all[i].most = checkedTars
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

// tarRun is one tree in the workspace of a sandbox, which is a directory of the
// host.
type tarRun struct {
	app  *app
	sb   *client.Sandbox
	tree tree
	dir  string // in the workspace
	file string // the archive, outside of it
}

func (r tarRun) local(name string) string { return filepath.Join(r.app.workspace, r.dir, name) }

// fill makes the directory and its archive.
func (r tarRun) fill(ctx context.Context) error {
	content := make([]byte, r.tree.each)
	for i := range content {
		content[i] = byte(i * 7)
	}
	for i := range r.tree.files {
		dir := filepath.Join(r.local("src"), "d"+strconv.Itoa(i/100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make tree: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), content, 0o644); err != nil {
			return fmt.Errorf("make tree: %w", err)
		}
	}
	if err := command(ctx, "tar", "-cf", r.file, "-C", r.local("src"), ".").Run(); err != nil {
		return fmt.Errorf("make archive: %w", err)
	}
	return os.Link(r.file, r.local("in.tar"))
}

// subject times one run, and removes what it wrote, not timed.
func (r tarRun) subject(tool, way, how string, run func(context.Context) error) subject {
	return subject{name: tarOf(tool, way, r.tree), how: how, run: func(ctx context.Context) (measure, error) {
		began := time.Now()
		err := run(ctx)
		took := time.Since(began)
		if err == nil && way != wayOut {
			_, err = os.Stat(filepath.Join(r.local("dst"), "d"+strconv.Itoa((r.tree.files-1)/100), "f"+strconv.Itoa(r.tree.files-1)))
		}
		if rerr := os.Remove(r.file + ".out"); rerr != nil && way == wayOut && tool != insideTar {
			err = errors.Join(err, rerr)
		}
		return measure{Total: took}, errors.Join(err, os.RemoveAll(r.local("dst")))
	}}
}

// inside runs a script in the tree's directory, in the sandbox.
func (r tarRun) inside(ctx context.Context, script string) error {
	res, err := r.sb.Exec(ctx, "sh", "-ec", "cd /workspace/"+r.dir+"\n"+script)
	if err == nil && !res.OK() {
		err = fmt.Errorf("tar ended with status %d: %s", res.ExitStatus(), tail(string(res.Stderr)))
	}
	return err
}

func (r tarRun) out(ctx context.Context) error {
	f, err := os.Create(r.file + ".out")
	if err != nil {
		return err
	}
	report, err := r.app.client.TarOut(ctx, r.sb.ID, "/workspace/"+r.dir+"/src", api.TarOutOptions{}, f)
	if err == nil && report.Bytes != int64(r.tree.files)*int64(r.tree.each) {
		err = fmt.Errorf("the archive has %d bytes of files", report.Bytes)
	}
	return errors.Join(err, f.Close())
}

func (r tarRun) in(ctx context.Context, o api.TarInOptions) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = r.app.client.TarIn(ctx, r.sb.ID, "/workspace/"+r.dir+"/dst", o, io.Reader(f))
	return err
}

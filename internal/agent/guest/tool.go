//go:build linux

package guest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxTools bounds the file tools that work at once: each may hold a file in memory.
	maxTools = 4
	// maxToolTime bounds one of them.
	maxToolTime = 10 * time.Second
)

// doTool carries out a file tool of a model's.
func (a *Agent) doTool(p *peer, req *wire.Request) error {
	ctx, cancel := context.WithTimeout(a.attend(p, nil), maxToolTime)
	defer cancel()
	select {
	case a.tools <- struct{}{}:
	case <-ctx.Done():
		return cloche.Errorf(cloche.CodeNoCapacity, "%d file tools are at work in this sandbox, which is the limit", maxTools)
	}
	defer func() { <-a.tools }()
	t := req.Tool
	if t == nil {
		t = &wire.Tool{}
	}
	var out any
	var at *cloche.ToolPlace
	var do func(*place) (any, error)
	switch {
	case t.Read != nil:
		at, do = &t.Read.ToolPlace, func(pl *place) (any, error) { return toolRead(ctx, pl, t.Read) }
	case t.Write != nil:
		at, do = &t.Write.ToolPlace, func(pl *place) (any, error) { return toolWrite(pl, t.Write) }
	case t.Edit != nil:
		at, do = &t.Edit.ToolPlace, func(pl *place) (any, error) { return toolEdit(pl, t.Edit) }
	case t.Glob != nil:
		at, do = &t.Glob.ToolPlace, func(pl *place) (any, error) { return toolGlob(ctx, pl, t.Glob) }
	case t.Grep != nil:
		at, do = &t.Grep.ToolPlace, func(pl *place) (any, error) { return toolGrep(ctx, pl, t.Grep) }
	default:
		return cloche.Invalid("tool", "the request names no tool")
	}
	pl, err := a.toolPlace(*at, req.User)
	if err != nil {
		return a.rules.explain(at.Root, err)
	}
	defer pl.root.Close()
	if out, err = do(pl); err != nil {
		return a.rules.explain(pl.abs(), pl.fail(err))
	}
	return p.JSON(wire.KindReply, out)
}

// place is a directory that a tool does not leave, and a path in it.
type place struct {
	root *os.Root
	// name is the root's absolute path, rel the path below it; "." is the root.
	name, rel string
	// as runs what makes files.
	as func(func() error) error
}

// toolPlace opens what a request is about.
func (a *Agent) toolPlace(at cloche.ToolPlace, owner string) (*place, error) {
	if err := checkPath("root", at.Root); err != nil {
		return nil, err
	}
	u, err := a.users.lookup(owner)
	if err != nil {
		return nil, err
	}
	rel := at.Path
	if strings.HasPrefix(rel, "/") {
		// Not cleaned: what follows a link is that link's directory.
		var below bool
		if rel, below = strings.CutPrefix(rel+"/", strings.TrimRight(at.Root, "/")+"/"); !below {
			return nil, outside(at.Path, at.Root)
		}
	}
	if strings.IndexByte(rel, 0) >= 0 || len(rel) >= unix.PathMax {
		return nil, cloche.Invalid("path", "path %.200q is none", at.Path)
	}
	if rel = strings.Trim(rel, "/"); rel == "" {
		rel = "."
	}
	root, err := openRoot(at.Root)
	if err != nil {
		return nil, fileError("open", at.Root, err)
	}
	return &place{root: root, name: path.Clean(at.Root), rel: rel, as: func(fn func() error) error { return a.id.as(u, fn) }}, nil
}

// openRoot opens the directory of a tool. It is no link of /proc's, and nothing there:
// what /proc shows is the agent's too.
func openRoot(name string) (*os.Root, error) {
	d, err := open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if isKernels(int(d.Fd())) {
		return nil, unix.EACCES
	}
	real, err := os.Readlink(procFD(int(d.Fd())))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, err
	}
	// Whoever puts something else there meanwhile leads it nowhere.
	was, err := d.Stat()
	if err == nil {
		var is fs.FileInfo
		if is, err = root.Stat("."); err == nil && !os.SameFile(was, is) {
			err = unix.ENOENT
		}
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// isKernels is true for a file that a kernel makes up.
func isKernels(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) != nil || st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC
}

// abs is the absolute path that the request is about.
func (pl *place) abs() string { return pl.in(pl.rel) }

// in is the absolute path of one below the root.
func (pl *place) in(rel string) string { return path.Join(pl.name, rel) }

// open opens a regular file to be read.
func (pl *place) open(rel string) (*os.File, fs.FileInfo, error) {
	f, err := pl.root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	err = notOwn(int(f.Fd()))
	var st fs.FileInfo
	if err == nil {
		st, err = f.Stat()
	}
	switch {
	case err != nil:
	case st.IsDir():
		err = cloche.Invalid("path", "%.500q is a directory", pl.in(rel)).WithHint("glob says what is in it")
	case !st.Mode().IsRegular():
		err = cloche.Invalid("path", "%.500q is neither a file nor a link to one", pl.in(rel))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// fail classifies an error of a tool. What os.Root refuses by itself is the only error
// of a path without a number of the kernel's.
func (pl *place) fail(err error) error {
	if _, ok := errors.AsType[*cloche.Error](err); ok {
		return err
	}
	_, onPath := errors.AsType[*fs.PathError](err)
	_, onLink := errors.AsType[*os.LinkError](err)
	if _, ok := errors.AsType[syscall.Errno](err); !ok && (onPath || onLink) {
		return outside(pl.abs(), pl.name)
	}
	return fileError("use", pl.abs(), err)
}

func outside(name, root string) error {
	return cloche.Invalid("path", "%.500q is not below %.500q, or a symlink leads out of it", name, root).
		WithHint("name a path below the root, or another root")
}

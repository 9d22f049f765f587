//go:build linux

package guest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
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
		return api.Errorf(api.CodeNoCapacity, "%d file tools are at work in this sandbox, which is the limit", maxTools)
	}
	defer func() { <-a.tools }()
	t := req.Tool
	if t == nil {
		t = &wire.Tool{}
	}
	var out any
	var at *api.ToolPlace
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
		return api.Invalid("tool", "the request names no tool")
	}
	pl, err := a.toolPlace(*at, req.User)
	if err != nil {
		return a.rules.explain(at.Root, err)
	}
	defer pl.root.close()
	if out, err = do(pl); err != nil {
		return a.rules.explain(pl.abs(), pl.fail(err))
	}
	return p.JSON(wire.KindReply, out)
}

// place is a directory that a tool does not leave, and a path in it.
type place struct {
	root bounds
	// name is the root's absolute path, rel the path below it; "." is the root. way is the
	// root as it was asked for.
	name, rel, way string
	// as runs what makes files.
	as func(func() error) error
}

// toolPlace opens what a request is about.
func (a *Agent) toolPlace(at api.ToolPlace, owner string) (*place, error) {
	if err := checkPath("root", at.Root); err != nil {
		return nil, err
	}
	u, err := a.users.Lookup(owner)
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
		return nil, api.Invalid("path", "path %.200q is not valid", at.Path)
	}
	if rel = strings.Trim(rel, "/"); rel == "" {
		rel = "."
	}
	b, err := findBound(at.Root, false)
	if err == nil && b.depth < len(b.names) {
		b.close()
		err = unix.ENOENT
	}
	if err != nil {
		return nil, fileError("open", at.Root, err)
	}
	return &place{
		root: bounds{b}, name: path.Clean(at.Root), rel: rel, way: strings.TrimRight(at.Root, "/") + "/",
		as: func(fn func() error) error { return a.id.As(u, fn) },
	}, nil
}

// find follows a path below the root. The last name is followed too when it is a link and
// last is set.
func (pl *place) find(rel string, last bool) (*spot, error) { return pl.root.find(pl.way+rel, last) }

// isKernels is true for a file that a kernel makes up.
func isKernels(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) != nil || st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC
}

// abs is the absolute path that the request is about.
func (pl *place) abs() string { return pl.in(pl.rel) }

// in is the absolute path of one below the root.
func (pl *place) in(rel string) string { return path.Join(pl.name, rel) }

// openAt opens what is below the root.
func (pl *place) openAt(rel string, flags int) (*os.File, error) {
	s, err := pl.find(rel, true)
	return s.openFound(err, flags)
}

// open opens a regular file to be read.
func (pl *place) open(rel string) (*os.File, fs.FileInfo, error) {
	f, err := pl.openAt(rel, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		err = api.Invalid("path", "%.500q is a directory", pl.in(rel)).WithHint("glob says what is in it")
	case !st.Mode().IsRegular():
		err = api.Invalid("path", "%.500q is neither a file nor a link to one", pl.in(rel))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// fail classifies an error of a tool.
func (pl *place) fail(err error) error {
	if errors.Is(err, errLedOut) {
		return outside(pl.abs(), pl.name)
	}
	return fileError("use", pl.abs(), err)
}

func outside(name, root string) error {
	return api.Invalid("path", "%.500q is not below %.500q, or a symlink leads out of it", name, root).
		WithHint("name a path below the root, or another root")
}

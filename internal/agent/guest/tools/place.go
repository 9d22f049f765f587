//go:build linux

package tools

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

const (
	// maxToolTime bounds one of them.
	maxToolTime = 10 * time.Second
)

// place is a directory that a tool does not leave, and a path in it.
type place struct {
	root pathwalk.Roots
	// name is the root's absolute path, rel the path below it; "." is the root. way is the
	// root as it was asked for.
	name, rel, way string
	// as runs what makes files.
	as func(func() error) error
}

// toolPlace opens what a request is about.
func (ts *Tools) toolPlace(at api.ToolPlace, owner string) (*place, error) {
	if err := pathwalk.CheckPath("root", at.Root); err != nil {
		return nil, err
	}
	u, err := ts.users.Lookup(owner)
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
	b, err := pathwalk.OpenRoot(at.Root, false)
	if err == nil && b.Depth < len(b.Names) {
		b.Close()
		err = unix.ENOENT
	}
	if err != nil {
		return nil, pathwalk.FileError("open", at.Root, err)
	}
	return &place{
		root: pathwalk.Roots{b}, name: path.Clean(at.Root), rel: rel, way: strings.TrimRight(at.Root, "/") + "/",
		as: func(fn func() error) error { return ts.id.As(u, fn) },
	}, nil
}

// find follows a path below the root. The last name is followed too when it is a link and
// last is set.
func (pl *place) find(rel string, last bool) (*pathwalk.Location, error) {
	return pl.root.Find(pl.way+rel, last)
}

// abs is the absolute path that the request is about.
func (pl *place) abs() string { return pl.in(pl.rel) }

// in is the absolute path of one below the root.
func (pl *place) in(rel string) string { return path.Join(pl.name, rel) }

// openAt opens what is below the root.
func (pl *place) openAt(rel string, flags int) (*os.File, error) {
	s, err := pl.find(rel, true)
	return s.OpenFound(err, flags)
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
	if errors.Is(err, pathwalk.ErrEscaped) {
		return outside(pl.abs(), pl.name)
	}
	return pathwalk.FileError("use", pl.abs(), err)
}

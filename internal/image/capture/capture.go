// Package capture finds the files of a sandbox's root that differ from its image, and writes them as a tar. It
// uses the agent's list of files, so it works the same on every engine.
package capture

import (
	"context"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
	"github.com/cloche-dev/cloche/internal/image"
)

// Trees lists a filesystem of a sandbox and packs entries of it, as [agent.Client] does.
type Trees interface {
	Tree(ctx context.Context, top string, fn func(agent.TreeEntry) error) error
	PackOnly(ctx context.Context, top string, names []string, w io.Writer) (api.TarReport, error)
}

// Tmp is a filesystem of its own in a sandbox, and part of the layers of an image.
const Tmp = "tmp"

// The types of files in a mode of stat(2), on Linux, where the sandboxes are.
const (
	typeMask    = 0o170000
	typeDir     = 0o040000
	typeFile    = 0o100000
	typeSymlink = 0o120000
)

// Entry describes a file, so that a later one of the same name can be compared with it. Programs inside can set
// everything except the last three fields.
type Entry struct {
	mode, uid, gid uint32
	size, mtime    int64
	ctime          int64
	ino, dev       uint64 // not in an image
}

// IsDir reports whether the file is a directory.
func (e Entry) IsDir() bool { return e.mode&typeMask == typeDir }

// Same reports whether a file is as it was. The times of a directory are those of what is in it.
func (e Entry) Same(old Entry) bool {
	if e.mode != old.mode || e.uid != old.uid || e.gid != old.gid {
		return false
	}
	return e.IsDir() || e.size == old.size && e.mtime == old.mtime && e.ctime == old.ctime && e.ino == old.ino && e.dev == old.dev
}

// setID are the bits that some engines leave out when they unpack an image.
const setID = 0o6000

// Untouched reports whether a file is as it is in the image, and was not changed since the sandbox was
// created. Some engines mount the image, where the time of change is the time of the content, and others unpack
// it before.
func (e Entry) Untouched(in Entry, created int64) bool {
	if e.mode&^setID != in.mode&^setID || e.uid != in.uid || e.gid != in.gid {
		return false
	}
	if e.ctime >= created && e.ctime != in.ctime {
		return e.IsDir() && e.mode == in.mode
	}
	return e.IsDir() || e.size == in.size && e.mtime == in.mtime
}

// Files are the files of a root, by path.
type Files map[string]Entry

// FilesOf returns the files of an image. The times of change are those of the content.
func FilesOf(files *image.Tree) (Files, error) {
	k := Files{}
	err := files.Walk(".", func(name string, info fs.FileInfo) error {
		st, ok := info.Sys().(*erofs.Stat)
		if !ok || name == "." || under(name, Tmp) {
			return nil
		}
		e := Entry{mode: erofstar.Mode(info), uid: st.UID, gid: st.GID, size: info.Size(), mtime: int64(st.Mtime)*1e9 + int64(st.MtimeNs)}
		e.ctime = e.mtime
		switch info.Mode().Type() {
		case fs.ModeDir:
			e.mode |= typeDir
		case fs.ModeSymlink:
			e.mode |= typeSymlink
		default:
			e.mode |= typeFile
		}
		k[name] = e
		return nil
	})
	return k, err
}

func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// Listing is a filesystem as the agent lists it.
type Listing struct {
	Files Files
	// Hidden are mount points: what the image has there is not visible.
	Hidden []string
}

const (
	// maxListed bounds the files of a root.
	maxListed = 4_000_000
	// maxLayer bounds the bytes of a layer's files.
	maxLayer = 64 << 30
)

// List lists the filesystem at top. below is put before its names.
func List(ctx context.Context, sandbox Trees, top, below string) (Listing, error) {
	l := Listing{Files: Files{}}
	err := each(ctx, sandbox, top, below, func(name string, e Entry, mount bool) error {
		if len(l.Files) >= maxListed {
			return api.Errorf(api.CodeTooLarge, "the sandbox has more than %d files", maxListed)
		}
		if mount {
			l.Hidden = append(l.Hidden, name)
			return nil
		}
		l.Files[name] = e
		return nil
	})
	return l, err
}

// each calls fn with the files of the filesystem at top. Of what is mounted below only the mount points are listed.
func each(ctx context.Context, sandbox Trees, top, below string, fn func(name string, e Entry, mount bool) error) error {
	return sandbox.Tree(ctx, top, func(t agent.TreeEntry) error {
		name := string(t.Path)
		if !fs.ValidPath(name) || name == "." {
			return api.Errorf(api.CodeSandboxLost, "the sandbox lists a file %.100q", name)
		}
		return fn(path.Join(below, name), Entry{
			mode: t.Mode, uid: t.UID, gid: t.GID, size: t.Size, mtime: t.Mtime, ctime: t.Ctime, ino: t.Ino, dev: t.Dev,
		}, t.Mount)
	})
}

// ListAll lists the root and /tmp.
func ListAll(ctx context.Context, sandbox Trees) (Listing, error) {
	now, err := List(ctx, sandbox, "/", "")
	if err != nil {
		return Listing{}, err
	}
	inTmp, err := List(ctx, sandbox, "/"+Tmp, Tmp)
	maps.Copy(now.Files, inTmp.Files)
	return now, err
}

// own are files that a sandbox has of its own, whatever the image has.
func own(name string) bool {
	switch name {
	case "etc/hosts", "etc/hostname", "etc/resolv.conf", ".dockerenv", "run/.containerenv":
		return true
	}
	return strings.HasPrefix(name, ".cloche") // the agent's
}

// Diff returns the files that are new or not as they were, and those that are not there any more, without
// what is below a removed directory. Both are sorted.
func (k Files) Diff(now Listing, isSame func(now, before Entry) bool) (changed, removed []string) {
	inodes := map[[2]uint64]bool{} // of changed files
	same := []string{}
	for name, e := range now.Files {
		switch old, ok := k[name]; {
		case own(name):
		case ok && isSame(e, old):
			same = append(same, name)
		default:
			changed = append(changed, name)
			if !e.IsDir() {
				inodes[[2]uint64{e.dev, e.ino}] = true
			}
		}
	}
	// A new hard link does not change the times of the file everywhere.
	for _, name := range same {
		if e := now.Files[name]; !e.IsDir() && inodes[[2]uint64{e.dev, e.ino}] {
			changed = append(changed, name)
		}
	}
	hidden := map[string]bool{}
	for _, name := range now.Hidden {
		hidden[name] = true
	}
	for name := range k {
		if _, ok := now.Files[name]; ok || own(name) || hidden[name] || name == Tmp {
			continue
		}
		// Only below a directory that is still there is a removal to be told of.
		dir := path.Dir(name)
		if above, ok := now.Files[dir]; dir == "." || dir == Tmp || ok && above.IsDir() && k[dir].IsDir() {
			removed = append(removed, name)
		}
	}
	slices.Sort(changed)
	slices.Sort(removed)
	return changed, removed
}

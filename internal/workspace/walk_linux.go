//go:build !remoteonly

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxDepth bounds how deep a tree is walked: each level holds descriptors.
	maxDepth = 400
	// namesAtOnce is how many names of a directory are read in one go.
	namesAtOnce = 1024
)

// openDirAt opens the directory name in parent for reading, but not a symlink.
func openDirAt(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// reader opens the directory for reading: a place alone cannot be listed.
func (d *Dir) reader() (*os.File, error) { return openDirAt(d.file, ".") }

// lstatAt describes name in parent, and not what a symlink leads to.
func lstatAt(parent *os.File, name string) (st unix.Stat_t, err error) {
	if err = unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		err = &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st, err
}

// eachName calls f with every name in a directory, which f may remove, until ctx
// ends.
func eachName(ctx context.Context, dir *os.File, f func(name string) error) error {
	for {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := f(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// within names an entry of a directory of a tree.
func within(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "/" + name
}

// tooDeep is the error about a tree that is not walked to its end.
func tooDeep(path string) error {
	return api.Errorf(api.CodeTooLarge, "the directory %q is more than %d levels deep", clip(path), maxDepth).
		WithHint("remove or move up what is nested so deeply")
}

// isDir, isFile and isSymlink tell what a stat is of.
func isDir(st *unix.Stat_t) bool     { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isFile(st *unix.Stat_t) bool    { return st.Mode&unix.S_IFMT == unix.S_IFREG }
func isSymlink(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFLNK }

// typeOf is the kind of file as the wire names it.
func typeOf(st *unix.Stat_t) api.FileType {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return api.TypeFile
	case unix.S_IFDIR:
		return api.TypeDir
	case unix.S_IFLNK:
		return api.TypeSymlink
	}
	return api.TypeOther
}

// Empty returns api.CodeConflict when there is anything in the directory.
func (d *Dir) Empty(ctx context.Context) error {
	f, err := d.reader()
	if err != nil {
		return err
	}
	defer f.Close()
	return eachName(ctx, f, func(string) error {
		return api.Errorf(api.CodeConflict, "the workspace has files already, and a snapshot's would be mixed with them").
			WithHint("name a workspace that is new or empty, or none")
	})
}

// Clear removes all that is in the directory.
func (d *Dir) Clear() error {
	f, err := d.reader()
	if err != nil {
		return err
	}
	defer f.Close()
	mode := d.stat.Mode & 0o7777
	if err := emptyTop(f); err != nil {
		return fmt.Errorf("empty directory: %w", err)
	}
	return f.Chmod(fs.FileMode(mode & 0o777))
}

package workspace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openPath opens a directory as a place only; no part of the path may be a
// symlink.
func openPath(at int, path string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(at, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// openOwn opens a directory that Cloche's own configuration names: how its path
// leads there is the operator's affair.
func openOwn(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// procPath names an open file for calls that take a path only.
func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// pathOf is the path of an open directory.
func pathOf(f *os.File) (string, error) { return os.Readlink(procPath(f)) }

// rootOf opens an open directory as a root.
func rootOf(f *os.File) (*os.Root, error) { return os.OpenRoot(procPath(f)) }

// chmod changes the mode of an open directory. Descriptors of this kind take no fchmod.
func chmod(f *os.File, perm uint32) error {
	return unix.Fchmodat(unix.AT_FDCWD, procPath(f), perm, 0)
}

// renameNew renames below an open directory to a new name below another.
func renameNew(from int, name string, to int, as string) error {
	return unix.Renameat2(from, name, to, as, unix.RENAME_NOREPLACE)
}

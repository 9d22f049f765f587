package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openPath opens a directory; no part of the path may be a symlink.
func openPath(at int, path string) (*os.File, error) {
	for {
		fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW_ANY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
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
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// pathOf is the path of an open directory.
func pathOf(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	if _, _, errno := unix.Syscall(unix.SYS_FCNTL, f.Fd(), unix.F_GETPATH, uintptr(unsafe.Pointer(&buf[0]))); errno != 0 {
		return "", os.NewSyscallError("fcntl", errno)
	}
	name, _, _ := bytes.Cut(buf, []byte{0})
	return string(name), nil
}

// rootOf opens an open directory as a root.
func rootOf(f *os.File) (*os.Root, error) {
	name, err := pathOf(f)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	// Another directory may have that name by now.
	was, werr := f.Stat()
	is, ierr := root.Stat(".")
	if err := errors.Join(werr, ierr); err != nil || !os.SameFile(was, is) {
		return nil, errors.Join(err, root.Close(), unix.ESTALE)
	}
	return root, nil
}

// chmod changes the mode of an open directory.
func chmod(f *os.File, perm uint32) error { return unix.Fchmod(int(f.Fd()), perm) }

// renameNew renames below an open directory to a new name below another.
func renameNew(from int, name string, to int, as string) error {
	return unix.RenameatxNp(from, name, to, as, unix.RENAME_EXCL)
}

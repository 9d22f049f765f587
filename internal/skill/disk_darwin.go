package skill

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pathOf is the path of an open file.
func pathOf(f *os.File) (string, error) { return pathOfFD(f.Fd()) }

func pathOfFD(fd uintptr) (string, error) {
	buf := make([]byte, unix.PathMax)
	if _, _, errno := unix.Syscall(unix.SYS_FCNTL, fd, unix.F_GETPATH, uintptr(unsafe.Pointer(&buf[0]))); errno != 0 {
		return "", os.NewSyscallError("fcntl", errno)
	}
	name, _, _ := bytes.Cut(buf, []byte{0})
	return string(name), nil
}

// rootOf opens an open directory as a root.
func rootOf(dir *os.File) (*os.Root, error) {
	name, err := pathOf(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	// Another directory may have that name by now.
	was, werr := dir.Stat()
	is, ierr := root.Stat(".")
	if err := errors.Join(werr, ierr); err != nil || !os.SameFile(was, is) {
		return nil, errors.Join(err, root.Close(), unix.ESTALE)
	}
	return root, nil
}

// openAt opens a path below an open directory. It passes no symlink, also none
// that comes in the way meanwhile, and waits for no FIFO.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	refused := func(err error) error { return &fs.PathError{Op: "open", Path: name, Err: err} }
	if clean := path.Clean(name); path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return nil, refused(unix.EXDEV)
	}
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW_ANY|unix.O_NOCTTY, 0o644)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, refused(err)
		}
		at, err := pathOfFD(uintptr(fd))
		if err != nil {
			return nil, errors.Join(refused(err), unix.Close(fd))
		}
		return os.NewFile(uintptr(fd), at), nil
	}
}

// born is when a directory was made, and other where the filesystem does not know.
func born(at *os.File, other time.Time) time.Time {
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil || st.Btim.Sec <= 0 {
		return other
	}
	if t := time.Unix(st.Btim.Sec, st.Btim.Nsec).UTC(); t.Before(other) {
		return t
	}
	return other
}

// syncAll writes all that was written through to the disks: there is no call for one
// filesystem.
func syncAll(*os.File) error { return unix.Sync() }

// renameNew renames to a new name below the same directory.
func renameNew(dir int, from, to string) error {
	return unix.RenameatxNp(dir, from, dir, to, unix.RENAME_EXCL)
}

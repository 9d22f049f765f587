package skill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pathOf is the path of an open file.
func pathOf(f *os.File) (string, error) { return os.Readlink(fdPath(f)) }

// rootOf opens an open directory as a root.
func rootOf(dir *os.File) (*os.Root, error) { return os.OpenRoot(fdPath(dir)) }

// fdPath names an open file for calls that take a path only.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openAt opens a path below an open directory. It passes no symlink, also none
// that comes in the way meanwhile, and waits for no FIFO.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			// By this name what is in a directory is looked at, and not what lies elsewhere.
			return os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd)), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN) && try < 100:
			// Something was renamed while it looked.
		default:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// born is when a directory was made, and other where the filesystem does not know.
func born(at *os.File, other time.Time) time.Time {
	var st unix.Statx_t
	err := unix.Statx(int(at.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return other
	}
	if t := time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).UTC(); t.Before(other) {
		return t
	}
	return other
}

// syncAll writes the filesystem of an open directory through to its disk.
func syncAll(dir *os.File) error { return unix.Syncfs(int(dir.Fd())) }

// renameNew renames to a new name below the same directory.
func renameNew(dir int, from, to string) error {
	return unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
}

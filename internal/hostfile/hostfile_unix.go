//go:build linux || darwin

package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lock waits for the lock of a file. It also holds between processes, and ends when f is
// closed or with the process that has it. A file that is opened twice has it once.
func Lock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// TryLock is Lock that does not wait: ErrLocked says that another process has it.
func TryLock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		}
		return err
	}
}

// Unlock gives a lock up while the file stays open.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // of a valid descriptor, and Close would undo it
}

// OpenFile opens a file that is no symlink; a FIFO in its place does not hold it up. While
// it is open it can be renamed and removed.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, perm)
}

// Rename gives a file another name, which another may have until then. Both may be open.
func Rename(from, to string) error { return os.Rename(from, to) }

// RenameNew gives a file a new name: fs.ErrExist says that another file has it.
func RenameNew(from, to string) error {
	err := renameNew(from, to)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// A filesystem without that flag. The caller has a lock that keeps others away.
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fs.ErrExist)
	}
	return os.Rename(from, to)
}

// syncDirIn makes the names in a directory of root last.
func syncDirIn(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// IsFull reports whether an error is a full disk, quota or file.
func IsFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// ID tells an open file from every other of its filesystem.
func ID(f *os.File) (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino, nil
	}
	return 0, errors.ErrUnsupported
}

// Look is the ID and the size of what has a name; a symlink is not followed.
func Look(path string) (id uint64, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Ino, st.Size, nil
}

// Occupied is how much of the disk a file takes.
func Occupied(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// CloseDir closes a directory to everybody but this user. One of another user is a
// *ForeignError.
func CloseDir(dir string) error {
	// The mode is the mode of the directory that was looked at, not of another that replaced
	// it.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return &ForeignError{why: fmt.Sprintf("belongs to uid %d, and this is uid %d", st.Uid, os.Geteuid())}
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return root.Chmod(".", 0o700)
}

// Guarded says of an open file who but this user reads or writes it: a *ForeignError, or
// nil if no other user does.
func Guarded(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return &ForeignError{why: fmt.Sprintf("belongs to uid %d, and the daemon is %d", st.Uid, os.Geteuid())}
	} else if ok && st.Mode&0o077 != 0 {
		return &ForeignError{why: fmt.Sprintf("has mode %#o, which lets others at it: it must be 0600", st.Mode&0o7777)}
	}
	return nil
}

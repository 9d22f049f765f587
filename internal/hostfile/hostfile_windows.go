package hostfile

import (
	"errors"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A lock of Windows keeps others from reading what is locked, so it is one byte far behind
// the end of any file.
const lockAt = 1 << 30 // in the upper half of the offset

func lock(f *os.File, flags uint32) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: lockAt})
}

// Lock waits for the lock of a file. It also holds between processes, and ends when f is
// closed or with the process that has it. A file that is opened twice has it once.
func Lock(f *os.File) error { return lock(f, 0) }

// TryLock is Lock that does not wait: ErrLocked says that another process has it.
func TryLock(f *os.File) error {
	err := lock(f, windows.LOCKFILE_FAIL_IMMEDIATELY)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	return err
}

// Unlock gives a lock up while the file stays open.
func Unlock(f *os.File) {
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{OffsetHigh: lockAt})
}

// shared lets others do what a system of Unix lets them do with an open file.
const shared = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE

// OpenFile opens a file that is no symlink; a FIFO in its place does not hold it up. While
// it is open it can be renamed and removed.
func OpenFile(path string, flag int, _ fs.FileMode) (*os.File, error) {
	wrong := func(err error) error { return &fs.PathError{Op: "open", Path: path, Err: err} }
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, wrong(err)
	}
	var access uint32
	switch flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_WRONLY:
		access = windows.GENERIC_WRITE
	case os.O_RDWR:
		access = windows.GENERIC_READ | windows.GENERIC_WRITE
	default:
		access = windows.GENERIC_READ
	}
	if flag&os.O_APPEND != 0 {
		access = access&^windows.GENERIC_WRITE | windows.FILE_APPEND_DATA | windows.FILE_WRITE_ATTRIBUTES | windows.SYNCHRONIZE
	}
	var mode uint32 = windows.OPEN_EXISTING
	switch {
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		mode = windows.CREATE_NEW
	case flag&os.O_CREATE != 0:
		mode = windows.OPEN_ALWAYS
	}
	h, err := windows.CreateFile(name, access, shared, nil, mode, windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return nil, wrong(err)
	}
	f := os.NewFile(uintptr(h), path)
	var info windows.ByHandleFileInformation
	err = windows.GetFileInformationByHandle(h, &info)
	if err == nil && info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		err = windows.ERROR_CANT_ACCESS_FILE
	}
	if err == nil && flag&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(wrong(err), f.Close())
	}
	return f, nil
}

// renameFlags replace a file that has the name, also if that file is open or
// read-only.
const renameFlags = windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS | windows.FILE_RENAME_IGNORE_READONLY_ATTRIBUTE

// Rename gives a file another name, which another may have until then. Both may be open.
func Rename(from, to string) error {
	wrong := func(err error) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: err} }
	src, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return wrong(err)
	}
	dst, err := windows.UTF16FromString(to)
	if err != nil {
		return wrong(err)
	}
	if err = renameOpen(src, dst); err == nil || errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err)
	}
	// A system or a filesystem without that: what has the name must not be open, nor be
	// for reading alone.
	_ = windows.SetFileAttributes(&dst[0], windows.FILE_ATTRIBUTE_NORMAL)
	if err := windows.MoveFileEx(src, &dst[0], windows.MOVEFILE_REPLACE_EXISTING); err != nil {
		return wrong(err)
	}
	return nil
}

func renameOpen(src *uint16, dst []uint16) error {
	h, err := windows.CreateFile(src, windows.DELETE|windows.SYNCHRONIZE, shared, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return err
	}
	defer func() { _ = windows.CloseHandle(h) }()
	// FILE_RENAME_INFO, whose name has the size that it has.
	type head struct {
		flags  uint32
		root   windows.Handle
		length uint32
		name   [1]uint16
	}
	at := unsafe.Offsetof(head{}.name)
	buf := make([]byte, max(int(at)+2*len(dst), int(unsafe.Sizeof(head{}))))
	info := (*head)(unsafe.Pointer(&buf[0]))
	info.flags, info.length = renameFlags, uint32(2*(len(dst)-1))
	copy(unsafe.Slice(&info.name[0], len(dst)), dst)
	return windows.SetFileInformationByHandle(h, windows.FileRenameInfoEx, &buf[0], uint32(len(buf)))
}

// RenameNew gives a file a new name: fs.ErrExist says that another file has it.
func RenameNew(from, to string) error {
	src, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	dst, err := windows.UTF16PtrFromString(to)
	if err == nil {
		err = windows.MoveFileEx(src, dst, 0)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// syncDirIn has nothing to do: names are in the journal of the filesystem, and no call
// writes a directory through.
func syncDirIn(*os.Root, string) error { return nil }

// IsFull reports whether an error is a full disk, quota or file.
func IsFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED) || errors.Is(err, windows.ERROR_FILE_TOO_LARGE)
}

// ID tells an open file from every other of its filesystem.
func ID(f *os.File) (uint64, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info); err != nil {
		return 0, err
	}
	return uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow), nil
}

// Look is the ID and the size of what has a name; a symlink is not followed.
func Look(path string) (id uint64, size int64, err error) {
	f, err := OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	id, err = ID(f)
	return id, info.Size(), err
}

// Occupied is how much of the disk a file takes, which here is what it holds.
func Occupied(info fs.FileInfo) int64 { return info.Size() }

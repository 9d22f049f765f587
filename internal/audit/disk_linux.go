package audit

import "golang.org/x/sys/unix"

// syncData writes what a file holds through to the disk.
func syncData(fd int) error { return unix.Fdatasync(fd) }

// renameNew renames a file to a name that nobody has.
func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

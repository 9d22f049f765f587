package audit

import "golang.org/x/sys/unix"

// syncData writes what a file holds through to the disk, and has the disk write it down.
func syncData(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	return err
}

// renameNew renames a file to a name that nobody has.
func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }

package audit

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData writes what a file holds through to the disk, and has the disk write it down.
func syncData(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_FULLFSYNC, 0)
	return err
}

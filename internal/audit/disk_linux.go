package audit

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData writes what a file holds through to the disk.
func syncData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

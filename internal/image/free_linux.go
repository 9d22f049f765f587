package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// free gives a part of a file back to the disk. It is errors.ErrUnsupported where the
// filesystem cannot.
func free(f *os.File, from, length int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, length)
}

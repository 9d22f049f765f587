package image

import "golang.org/x/sys/unix"

// free gives a part of a file back to the disk. It is unix.EOPNOTSUPP where the
// filesystem cannot.
func free(fd int, from, length int64) error {
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, length)
}

//go:build unix

package hostfile

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Below these a file system counts as full: small records still fit for a moment.
const (
	fullBytes  = 1 << 20
	fullInodes = 16
)

// FullReason says what the file system of dir has run out of for this user, as the end of
// a sentence that begins with its name; empty is nothing, or that it does not say.
func FullReason(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return ""
	}
	return fullReason(freeBlocks(&st), uint64(st.Bsize), uint64(st.Files), uint64(st.Ffree))
}

// FreeBytes is how much this user may still write on the file system of dir; where it
// does not say, that is no bound.
func FreeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return math.MaxUint64
	}
	return freeBlocks(&st) * uint64(st.Bsize)
}

// freeBlocks are those that this user may have: root has the reserved ones too.
func freeBlocks(st *unix.Statfs_t) uint64 {
	if unix.Geteuid() == 0 {
		return uint64(st.Bfree)
	}
	return uint64(st.Bavail)
}

// fullReason judges free blocks of size bytes, and free inodes of all. A file system
// that does not count inodes has none in all.
func fullReason(blocks, size, inodes, freeInodes uint64) string {
	switch {
	case size > 0 && blocks < fullBytes/size:
		return fmt.Sprintf("has %d KiB free", blocks*size>>10)
	case inodes > 0 && freeInodes < fullInodes:
		return fmt.Sprintf("has %d inodes free", freeInodes)
	}
	return ""
}

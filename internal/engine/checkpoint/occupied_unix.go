//go:build unix

package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// occupied returns how much of the disk a file needs, in bytes.
func occupied(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Blocks * 512, nil
}

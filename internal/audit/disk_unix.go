//go:build linux || darwin

package audit

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// duplicate makes a descriptor of its own for an open file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// onlyOwn takes the permissions of others from a file.
func onlyOwn(f *os.File, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return f.Chmod(0o600)
}

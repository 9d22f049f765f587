//go:build linux || darwin

package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// noWait has a FIFO opened that has no writer.
const noWait = unix.O_NONBLOCK

// checkOwn refuses a directory of images that others can write.
func checkOwn(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("stat image store: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("open image store %s: it is not a directory that this user alone can write", dir)
	}
	return nil
}

// look notes how path looks now; a symlink is not followed.
func look(path string) (seen, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return seen{Path: path, Missing: true}, nil
	case err != nil:
		return seen{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return seen{
		Path: path, Dev: uint64(st.Dev), Ino: st.Ino, Mode: uint32(st.Mode), Size: st.Size,
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), UID: st.Uid,
	}, nil
}

// seenOf is look for an open file, whose path is not noted.
func seenOf(f *os.File) (s seen, regular bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return seen{}, false, err
	}
	return seen{
		Dev: uint64(st.Dev), Ino: st.Ino, Mode: uint32(st.Mode), Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

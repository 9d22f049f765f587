package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

// noWait is nothing: there are no FIFOs that a name leads to.
const noWait = 0

// checkOwn refuses a directory of images that others can write.
func checkOwn(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	defer f.Close()
	if err := hostfile.Guarded(f); err != nil {
		return fmt.Errorf("open image store: the directory %s %w", dir, err)
	}
	return nil
}

// look notes how path looks now; a symlink is not followed.
func look(path string) (seen, error) {
	id, size, err := hostfile.Look(path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return seen{Path: path, Missing: true}, nil
	case err != nil:
		return seen{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return seen{Path: path, Ino: id, Mode: uint32(info.Mode()), Size: size, Mtime: info.ModTime().UnixNano()}, nil
}

// seenOf is look for an open file, whose path is not noted.
func seenOf(f *os.File) (s seen, regular bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return seen{}, false, err
	}
	id, err := hostfile.ID(f)
	return seen{Ino: id, Mode: uint32(info.Mode()), Size: info.Size(), Mtime: info.ModTime().UnixNano()}, info.Mode().IsRegular(), err
}

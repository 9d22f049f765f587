//go:build linux || darwin

package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory that hostile code has filled, whatever its
// depth: it walks descriptors, never paths, and holds only two at a time. What
// is nested is moved up to the top and emptied there, so that neither depth nor
// a path longer than the kernel takes can stop it. A symlink is removed, never
// followed. A directory that is gone already is no error.
func RemoveTree(path string) error {
	top, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return ignoreMissing(os.Remove(path))
	case err != nil:
		return fmt.Errorf("remove tree: %w", err)
	}
	f := os.NewFile(uintptr(top), path)
	defer f.Close()
	if err := emptyTop(f); err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	return ignoreMissing(os.Remove(path))
}

// emptyTop removes all that is in the directory top. Each pass empties every
// directory directly below it; what those contained that was itself a non-empty
// directory has then moved up and is there for the next pass.
func emptyTop(top *os.File) error {
	fd := int(top.Fd())
	// A mode without permissions would stop an owner who is not root.
	_ = unix.Fchmod(fd, 0o700)
	var moved int
	for {
		if _, err := top.Seek(0, 0); err != nil {
			return err
		}
		names, err := top.Readdirnames(4096)
		if len(names) == 0 {
			if err == nil || isEOF(err) {
				return nil
			}
			return err
		}
		for _, name := range names {
			if err := removeEntry(fd, name, func(from int, nested string) error {
				return moveUp(from, nested, fd, &moved)
			}); err != nil {
				return err
			}
		}
	}
}

// moveUp renames a nested directory into top under a name that is free there.
func moveUp(from int, nested string, top int, moved *int) error {
	for {
		*moved++
		err := renameNew(from, nested, top, ".cloche-rm-"+strconv.Itoa(*moved))
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// removeEntry removes one entry of a directory. For a directory that is not
// empty it removes what that contains, handing nested directories that are not
// empty to lift, and then the directory itself.
func removeEntry(parent int, name string, lift func(from int, nested string) error) error {
	done, err := unlinkAny(parent, name)
	if done || err != nil {
		return err
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		if err = unix.Fchmodat(parent, name, 0o700, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			fd, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	_ = unix.Fchmod(fd, 0o700)
	for {
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
		names, err := dir.Readdirnames(4096)
		if len(names) == 0 {
			if err != nil && !isEOF(err) {
				return err
			}
			_, err = unlinkAny(parent, name)
			return err
		}
		for _, nested := range names {
			done, err := unlinkAny(fd, nested)
			if err == nil && !done {
				// The kernel wants to write ".." of a directory that it moves.
				_ = unix.Fchmodat(fd, nested, 0o700, unix.AT_SYMLINK_NOFOLLOW)
				err = lift(fd, nested)
			}
			if err != nil {
				return err
			}
		}
	}
}

// unlinkAny removes a file, symlink or empty directory; done is false when the
// entry is a directory with something in it.
func unlinkAny(parent int, name string) (done bool, err error) {
	err = unix.Unlinkat(parent, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return false, nil
	}
	return false, err
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

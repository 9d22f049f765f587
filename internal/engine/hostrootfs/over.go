//go:build linux

package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// cover makes a memory filesystem that cannot be written once it is filled, and mounts it on
// the directory over while put puts copies of what is in it where they belong: the kernel copies
// what is mounted somewhere, and a copy of it shows nothing of where the host keeps its files.
func cover(over string, options []string, fill func(at int) error, put func() error) (err error) {
	fs, err := closedFilesystem(options, fill)
	if err != nil {
		return fmt.Errorf("make what covers: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.MoveMount(fs, "", unix.AT_FDCWD, over, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount what covers: %w", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("umount", unix.Unmount(over, unix.MNT_DETACH))) }()
	return put()
}

// closedFilesystem returns a descriptor of a memory filesystem that is mounted nowhere.
func closedFilesystem(options []string, fill func(at int) error) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, os.NewSyscallError("fsconfig", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fsmount", err)
	}
	err = fill(mount)
	if err == nil {
		err = unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: InertAttrs, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		_ = unix.Close(mount)
		return -1, err
	}
	return mount, nil
}

// coverAt mounts a copy of the file at path on what a descriptor is of. What has been
// removed since it was opened is passed over.
func coverAt(path string, at int) error {
	copied, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer func() { _ = unix.Close(copied) }()
	err = unix.MoveMount(copied, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return os.NewSyscallError("move_mount", err)
}

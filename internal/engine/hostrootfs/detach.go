//go:build linux

package hostrootfs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Detach makes a mount of a path, with what is mounted below it, that is attached nowhere and private,
// with attributes MOUNT_ATTR_*. It returns the mount's descriptor. The caller needs CAP_SYS_ADMIN.
func Detach(path string, attrs uint64) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open mount: %w", err)
	}
	attr := unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set attributes of mount: %w", err)
	}
	return fd, nil
}

//go:build linux

package hostrootfs

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LandlockVersion is the version of the kernel's Landlock; 0 without Landlock.
func LandlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// Covered is a mount with sockets to cover.
type Covered struct {
	// Mount is a descriptor of its root.
	Mount int
	// Sockets are paths in it.
	Sockets []string
}

// CoverSockets covers sockets in mounts of the calling thread's mount namespace, by way of
// a directory as cover has it. What is no socket any more is passed over.
func CoverSockets(over string, in []Covered) error {
	fill := func(at int) error { return unix.Mknodat(at, InertSocket, InertMode, 0) }
	err := cover(over, InertOptions(), fill, func() error {
		for _, m := range in {
			for _, name := range m.Sockets {
				if err := coverSocket(filepath.Join(over, InertSocket), m.Mount, name); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cover sockets of the host: %w", err)
	}
	return nil
}

// InertSocket is the name of the socket that others are covered with.
const InertSocket = "socket"

// What the socket is like, and the filesystem of what covers. Nothing can be changed of it.
const (
	InertMode  = unix.S_IFSOCK | 0o666
	InertAttrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// InertOptions are those of the filesystem.
func InertOptions() []string { return []string{"size=4k", "nr_inodes=4", "mode=755"} }

// coverHow is how a socket of a mount is found: over no link, and as it lies there.
const coverHow = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// HowSocket is the argument of openat2 for it.
func HowSocket() unix.OpenHow {
	return unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: coverHow}
}

func coverSocket(inert string, mount int, name string) error {
	how := HowSocket()
	at, err := unix.Openat2(mount, name, &how)
	if err != nil {
		return nil //nolint:nilerr // gone, moved, or where nobody inside gets to either
	}
	defer func() { _ = unix.Close(at) }()
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return err
	}
	return coverAt(inert, at)
}

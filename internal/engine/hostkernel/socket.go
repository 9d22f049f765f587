//go:build linux

package hostkernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// LandlockVersion is the version of the kernel's Landlock; 0 is none.
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

// CoverSockets covers sockets in mounts of the calling thread's mount namespace. A memory
// filesystem is mounted on the directory over meanwhile, so that none of the covers shows
// where the host keeps its files. What is no socket any more is passed over.
func CoverSockets(over string, in []Covered) (err error) {
	fs, err := inertSocket()
	if err != nil {
		return fmt.Errorf("make a socket to cover others with: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.MoveMount(fs, "", unix.AT_FDCWD, over, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("make a socket to cover others with: %w", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("umount", unix.Unmount(over, unix.MNT_DETACH))) }()
	for _, m := range in {
		for _, name := range m.Sockets {
			if err := coverSocket(filepath.Join(over, InertSocket), m.Mount, name); err != nil {
				return fmt.Errorf("cover a socket of the host: %w", err)
			}
		}
	}
	return nil
}

// InertSocket is the name of the socket that others are covered with.
const InertSocket = "socket"

// inertSocket makes a filesystem with nothing but a socket that nobody listens on, and is
// able to: a socket is bound where there is no name yet.
func inertSocket() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, o := range InertOptions() {
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
	err = unix.Mknodat(mount, InertSocket, InertMode, 0)
	if err == nil {
		err = unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: InertAttrs, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		_ = unix.Close(mount)
		return -1, err
	}
	return mount, nil
}

// What the socket and its filesystem are like. Nothing can be changed of it.
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
	cover, err := unix.OpenTree(unix.AT_FDCWD, inert, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer func() { _ = unix.Close(cover) }()
	err = unix.MoveMount(cover, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed since
	}
	return os.NewSyscallError("move_mount", err)
}

//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/idmap"
)

const stagedPrefix = "m-"

// Staged is a directory at a path that only this user can change. For root
// it is a mount of its own: nosuid, nodev, without what is mounted below the
// directory, and with sandbox root in the place of the directory's owner; it is
// to be served from a user namespace of its own (see mapIDs).
// Without root it is the directory's own path, since only the calling user
// could change that.
type Staged struct {
	// Path is what an engine mounts.
	Path  string
	mount bool
	// Closed says that programs of the host's own kernel are kept from all sockets of the
	// host in it, see Closing: by Stage, or by the engine that was named with it.
	Closed bool
}

// Stage makes the directory ready for an engine. Staging is an existing 0700
// directory of this user. What Stage mounts can be closed as soon as the engine
// has its own mount of it.
func (d *Dir) Stage(staging string, readOnly bool) (*Staged, error) {
	if os.Geteuid() != 0 {
		if same, err := d.same(d.path); err != nil || !same {
			return nil, api.Errorf(api.CodeInvalid, "the directory %q was replaced before it could be mounted", clip(d.path)).
				WithHint("ask again").WithCause(err)
		}
		return &Staged{Path: d.path}, nil
	}
	place, err := openOwn(staging)
	if err != nil {
		return nil, fmt.Errorf("open staging directory: %w", err)
	}
	defer place.Close()
	if err := ours(place, 0o077); err != nil {
		return nil, fmt.Errorf("use staging directory %s: %w", staging, err)
	}
	at, err := os.Readlink(procPath(place))
	if err != nil {
		return nil, fmt.Errorf("read path of staging directory: %w", err)
	}
	tree, closed, err := d.clone(readOnly)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(tree) }()

	name := api.NewID(stagedPrefix)
	if err := unix.Mkdirat(int(place.Fd()), name, 0o700); err != nil {
		return nil, fmt.Errorf("make mount point: %w", err)
	}
	s := &Staged{Path: filepath.Join(at, name), mount: true, Closed: closed}
	if err := unix.MoveMount(tree, "", int(place.Fd()), name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		_ = unix.Unlinkat(int(place.Fd()), name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("mount staged directory: %w", err)
	}
	if same, err := d.same(s.Path); err != nil || !same {
		_ = s.Close()
		return nil, fmt.Errorf("mount staged directory: another one is seen there: %w", errors.Join(err, unix.ESTALE))
	}
	return s, nil
}

// clone makes a mount of the very directory that is held open, which is not yet
// anywhere. Without AT_RECURSIVE what is mounted below stays out.
func (d *Dir) clone(readOnly bool) (tree int, closed bool, err error) {
	tree, err = unix.OpenTree(int(d.file.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		e := api.Errorf(api.CodeUnsupported, "the directory %q cannot be mounted apart from its path: %w", clip(d.path), err)
		return -1, false, e.WithHint("as root, Cloche needs Linux 5.12 and the capability CAP_SYS_ADMIN; as another user it needs neither")
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE,
	}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(tree)
		return -1, false, fmt.Errorf("set attributes of staged mount: %w", err)
	}
	closed, err = d.shift(tree, readOnly)
	if err != nil {
		_ = unix.Close(tree)
		return -1, false, err
	}
	return tree, closed, nil
}

// shift maps the ids of a mount of the directory, and says whether it is closed by that or
// is going to be.
func (d *Dir) shift(tree int, readOnly bool) (closed bool, err error) {
	closed = readOnly && d.closing > CloseNone
	m, wanted := d.mapping(readOnly)
	if !wanted {
		if closed {
			closed, err = d.closer.can(d)
		}
		return closed, err
	}
	err = d.mapIDs(tree, m)
	if err != nil && (d.managed || d.stat.Uid == 0) && errors.Is(err, api.ErrUnsupported) {
		return false, nil // it shows the right owners as it is, and nothing is closed in it
	}
	return closed && err == nil, err
}

// mapping is how the mount shows the ids on disk, if not as they are.
func (d *Dir) mapping(readOnly bool) (m idmap.Mapping, wanted bool) {
	switch closed := readOnly && d.closing > CloseNone; {
	case d.managed && d.closing != CloseAll:
		return m, false
	case d.stat.Uid != 0 && !d.managed:
		m = ownerMapping(d.stat.Uid, d.stat.Gid)
		if closed {
			m.GIDs = idmap.NoGroups()
		}
		return m, true
	case closed && d.closing == CloseAll:
		return idmap.Mapping{UIDs: []syscall.SysProcIDMap{{Size: math.MaxUint32}}, GIDs: idmap.NoGroups()}, true
	}
	return m, false
}

// Closing says in which directories Stage keeps programs of the host's own kernel from
// connecting to sockets and writing to named pipes of the host. It does in those only
// that are staged read-only.
type Closing int

const (
	// CloseNone is for an engine whose programs reach no socket of the host.
	CloseNone Closing = iota
	// CloseForeign is for an engine that maps the ids of what belongs to this user, and
	// closes it by that.
	CloseForeign
	// CloseAll is for an engine that mounts what is staged as it is.
	CloseAll
)

// CloseSockets says what Stage closes of the directory.
func (d *Dir) CloseSockets(c Closing, with *Closer) { d.closing, d.closer = c, with }

// mapIDs shows the ids of a mount by a mapping, most often with sandbox root in the place
// of the directory's owner. On disk no
// other user's file can then be opened beyond what the world may, changed, or
// made: root's least of all. One thing an engine has to add: what serves the
// mount must be in a user namespace of its own (every id mapped to itself is
// enough), because the kernel lets CAP_CHOWN of the first one give a file whose
// owner has no place in the mapping to an owner who has.
func (d *Dir) mapIDs(tree int, m idmap.Mapping) error {
	ns, err := m.Namespace()
	if err != nil {
		return fmt.Errorf("map owner of directory: %w", err)
	}
	defer ns.Close()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd()),
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return api.Errorf(api.CodeUnsupported,
			"the directory %q belongs to user %d, and its filesystem cannot show it as belonging to sandbox root: %w", clip(d.path), d.stat.Uid, err).
			WithHint("mount a directory that is on ext4, xfs, btrfs or tmpfs, or one that belongs to root, or run Cloche as user %d", d.stat.Uid)
	}
	if err != nil {
		return fmt.Errorf("map owner of directory: %w", err)
	}
	return nil
}

// Close unmounts what Stage mounted. It is idempotent.
func (s *Staged) Close() error {
	if !s.mount {
		return nil
	}
	err := unix.Unmount(s.Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	// EINVAL: nothing is mounted there any more.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount staged directory: %w", err)
	}
	if err := unix.Rmdir(s.Path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove mount point: %w", err)
	}
	return nil
}

// mountsBelow lists the mounts below dir in this mount namespace.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	var below []string
	for _, m := range mounts {
		if strings.HasPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/") {
			below = append(below, m.Point)
		}
	}
	return below, nil
}

//go:build linux

package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/idmap"
)

// ownersMend is what to do where the kernel does not map the owners of files.
const ownersMend = "put Cloche's home on ext4, xfs, btrfs or tmpfs: in a container on a volume, not in the container's own layer; or use engine gvisor"

// CheckOwners tries what every sandbox with ids of its own needs of the filesystem that
// images are unpacked on: a mount that shows files of root as those of the sandbox's root.
// It is nil where nothing is unpacked.
func (im *Images) CheckOwners(ids IDs) *api.Problem {
	if !ids.Many() {
		return nil
	}
	if err := os.MkdirAll(im.dir, 0o700); err != nil {
		return &api.Problem{What: err.Error()}
	}
	// From files on an overlay the kernel mounts no images.
	if im.kernel && filesystem(im.dir) != "overlayfs" {
		return nil
	}
	switch err := mapsOwners(im.dir, ids); {
	case errors.Is(err, unix.EPERM):
		return &api.Problem{What: fmt.Sprintf("the kernel does not let the daemon map the owners of files: %v", err), Mend: "run it with CAP_SYS_ADMIN, as root of the machine"}
	case err != nil:
		return &api.Problem{What: im.noOwners(err), Mend: ownersMend}
	}
	return nil
}

// mapsOwners maps the owners in a mount of dir that is attached nowhere.
func mapsOwners(dir string, ids IDs) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open mount: %w", err)
	}
	defer unix.Close(fd)
	by := func(id uint32) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{HostID: int(id), Size: int(ids.Size)}}
	}
	ns, err := idmap.Mapping{UIDs: by(ids.UID), GIDs: by(ids.GID)}.Namespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
}

// OwnersError is the error of a sandbox whose root's owners the kernel did not map, which
// says why where that is the filesystem's.
func (im *Images) OwnersError(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return api.Errorf(api.CodeUnsupported, "create sandbox: %s", im.noOwners(err)).WithHint("%s", ownersMend).WithCause(err)
	}
	return fmt.Errorf("map the ids of the root: %w", err)
}

func (im *Images) noOwners(err error) string {
	return fmt.Sprintf("the filesystem of Cloche's home, %s, has no mounts that map owners (idmapped mounts), which a sandbox's root needs: %v", filesystem(im.dir), err)
}

// filesystem names the kind of filesystem that a path is on, as far as it matters here.
func filesystem(path string) string {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return "which is of an unknown kind"
	}
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case unix.FUSE_SUPER_MAGIC:
		return "FUSE"
	}
	return fmt.Sprintf("of kind %#x", st.Type)
}

package docker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// shownControllers are the hierarchies of cgroups v1 by which programs know their limits. The
// JVM reads no limits where cpuset is missing.
var shownControllers = []string{"memory", "cpu", "cpuacct", "cpuset", "pids"}

// shownGroup is a read-only mount of a container's own cgroup, which is attached nowhere yet.
type shownGroup struct {
	name  string // below cgroupRoot inside; empty is cgroupRoot itself
	mount int
}

// shownGroups clones the cgroups of a container by its first process. A hierarchy that is not
// below cgroupRoot here is left out, as where Cloche runs in a container itself.
func shownGroups(pid int, id string) ([]shownGroup, error) {
	var shown []shownGroup
	var errs []error
	clone := func(name, dir string) {
		switch mount, err := readOnlyClone(dir); {
		case err == nil:
			shown = append(shown, shownGroup{name, mount})
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, err)
		}
	}
	unified := ""
	err := ownGroups(pid, id, func(controller, path string) {
		if controller == "" {
			unified = filepath.Join(cgroupRoot, path)
		} else if slices.Contains(shownControllers, controller) {
			clone(controller, filepath.Join(cgroupRoot, controller, path))
		}
	})
	if len(shown) == 0 && unified != "" {
		clone("", unified)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		closeShown(shown)
		return nil, err
	}
	return shown, nil
}

// readOnlyClone is a detached mount of a directory, which can be read only.
func readOnlyClone(dir string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("mount_setattr", err)
	}
	return fd, nil
}

func closeShown(shown []shownGroup) {
	for _, s := range shown {
		_ = unix.Close(s.mount)
	}
}

// putShown attaches the groups in the mount namespace of the calling thread, where cgroupRoot is
// an empty memory filesystem.
func putShown(shown []shownGroup) error {
	if len(shown) == 0 {
		return nil
	}
	if err := unix.Mount("", cgroupRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return os.NewSyscallError("remount", err)
	}
	var errs []error
	for _, s := range shown {
		at := filepath.Join(cgroupRoot, s.name)
		if s.name != "" {
			if err := unix.Mkdir(at, 0o755); err != nil {
				errs = append(errs, &os.PathError{Op: "mkdir", Path: at, Err: err})
				continue
			}
		}
		if err := unix.MoveMount(s.mount, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			errs = append(errs, &os.PathError{Op: "move_mount", Path: at, Err: err})
		}
	}
	if err := unix.Mount("", cgroupRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		errs = append(errs, os.NewSyscallError("remount", err))
	}
	return errors.Join(errs...)
}

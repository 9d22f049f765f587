package docker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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

// shownGroups clones the cgroups of a container by its first process. A group that is not named
// after the container is not the container's own, and is left out.
func shownGroups(pid int, id string) (shown []shownGroup, err error) {
	defer func() {
		if err != nil {
			closeShown(shown)
			shown = nil
		}
	}()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, err
	}
	unified := ""
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !strings.Contains(f[2], id) {
			continue
		}
		if f[1] == "" {
			unified = filepath.Join(cgroupRoot, f[2])
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if !slices.Contains(shownControllers, name) {
				continue
			}
			mount, err := readOnlyClone(filepath.Join(cgroupRoot, name, f[2]))
			if err != nil {
				return shown, err
			}
			shown = append(shown, shownGroup{name, mount})
		}
	}
	if len(shown) > 0 || unified == "" {
		return shown, nil
	}
	mount, err := readOnlyClone(unified)
	if err != nil {
		return nil, err
	}
	return []shownGroup{{"", mount}}, nil
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

//go:build linux

package native

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// openRoot makes a mount of the root's image, or finds where it is unpacked.
func (c *creation) openRoot() error {
	var err error
	if c.h.root, err = c.openImage(c.plan.Root.Image); err == nil && c.h.root.path == "" {
		c.keep()
	}
	return err
}

// openAgent makes a mount of the agent's image.
func (c *creation) openAgent() (err error) {
	c.h.agent, err = c.openImage(c.plan.Agent.Image)
	return err
}

func (c *creation) openImage(path string) (s source, err error) {
	fd, dir, err := c.e.images.Mount(path)
	if err != nil {
		return s, err
	}
	s = source{path: dir, unpacked: fd < 0, attrs: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
	if fd >= 0 {
		s.fd, err = c.give(fd)
	} else {
		err = c.detach(&s)
	}
	return s, err
}

// openMounts makes mounts of the plan's. Root makes them itself, so that no id of the
// sandbox needs a way to where they are; another user may not, and lets the child.
func (c *creation) openMounts() error {
	for _, m := range c.plan.Mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return fmt.Errorf("open mount: %w", err)
		}
		s := source{path: m.Source, attrs: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, file: !info.IsDir()}
		if m.ReadOnly {
			s.attrs |= unix.MOUNT_ATTR_RDONLY
		}
		if err := c.detach(&s); err != nil {
			return err
		}
		if s.path == "" {
			c.keep()
		}
		c.h.mounts = append(c.h.mounts, s)
	}
	return nil
}

// openDevices makes mounts of the device nodes.
func (c *creation) openDevices() error {
	for _, d := range hostrootfs.Devices() {
		path := "/dev/" + d.Name
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(d.Major, d.Minor) {
			return fmt.Errorf("open %s: not the device of that name: %w", path, errors.Join(err, unix.ENODEV))
		}
		s := source{path: path}
		if err := c.detach(&s); err != nil {
			return err
		}
		c.h.devices = append(c.h.devices, s)
	}
	return nil
}

// openShown makes mounts of the groups that programs may read.
func (c *creation) openShown() error {
	for _, g := range c.e.groups.Shown(c.group) {
		s := source{path: g.Path, attrs: quietAttrs | unix.MOUNT_ATTR_RDONLY, file: g.File}
		if err := c.detach(&s); err != nil {
			return err
		}
		c.h.shown, c.h.names = append(c.h.shown, s), append(c.h.names, path.Join(hostrootfs.ShownGroups, g.Name))
	}
	return nil
}

// detach makes a mount of a source's path that is attached nowhere.
func (c *creation) detach(s *source) error {
	if c.e.rootless {
		return nil
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, s.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("open mount: %w", err)
	}
	if fd, err = c.give(fd); err != nil {
		return err
	}
	if s.attrs != 0 {
		attr := unix.MountAttr{Attr_set: s.attrs, Propagation: unix.MS_PRIVATE}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("set attributes of mount: %w", err)
		}
	}
	s.path, s.fd = "", fd
	return nil
}

// keep has the mount that was given last stay open until its ids are mapped.
func (c *creation) keep() {
	last := len(c.fds) - 1
	c.kept, c.fds = append(c.kept, c.fds[last]), c.fds[:last]
}

// idmap shows in each mount the files of the host's root as those of the sandbox's.
func (c *creation) idmap(ns *os.File) error {
	var closed *os.File
	defer func() { _ = closed.Close() }() // of nil too
	for i, fd := range c.kept {
		by := ns
		if i > 0 && hostrootfs.Closes(c.plan.Mounts[i-1]) {
			if closed == nil {
				var err error
				if closed, err = c.ids.Closed(); err != nil {
					return err
				}
			}
			by = closed
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(by.Fd())}
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
		if err == nil {
			continue
		}
		if i == 0 { // an unpacked root has no mount of its own, and no range of ids
			return c.e.images.OwnersError(err)
		}
		// What may only be read can be read as it is, by whom its mode lets.
		m := c.plan.Mounts[i-1]
		if !m.ReadOnly {
			return api.Errorf(api.CodeUnsupported,
				"engine %s cannot map the owners in what is mounted at %s to those of the sandbox: its filesystem does not allow it, or it belongs to another user than the daemon's", c.e.name, m.Target).
				WithHint("mount it read-only, use a workspace of cloche's own, or engine gvisor").WithCause(err)
		}
	}
	return nil
}

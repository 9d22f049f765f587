//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/test/vm/plan"
)

// hierarchy is where the only one is mounted.
const hierarchy = "/sys/fs/cgroup"

// boxed is the first argument of this program as the first process of a container.
const boxed = "boxed"

// controllers hands every controller but some to the groups below the first one.
func controllers(without []string) error {
	have, err := os.ReadFile(filepath.Join(hierarchy, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(have)) {
		sign := "+"
		if slices.Contains(without, c) {
			sign = "-"
		}
		if err := os.WriteFile(filepath.Join(hierarchy, "cgroup.subtree_control"), []byte(sign+c), 0); err != nil {
			return fmt.Errorf("hand out controller %s: %w", c, err)
		}
	}
	return nil
}

// clear removes the groups that the last command left.
func clear() {
	var dirs []string
	_ = filepath.WalkDir(hierarchy, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != hierarchy {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // what has processes stays
	}
}

// put makes the place in which a command is to run. The descriptor, if there is one, is
// open until the command was started.
func put(cmd *exec.Cmd, place plan.Place) (*os.File, error) {
	switch place {
	case plan.Top:
		return nil, nil
	case plan.Delegated:
		group, session := filepath.Join(hierarchy, "user"), filepath.Join(hierarchy, "user", "session")
		if err := os.MkdirAll(session, 0o755); err != nil {
			return nil, err
		}
		for _, dir := range []string{group, session} {
			for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
				if err := os.Chown(filepath.Join(dir, name), plan.UID, plan.UID); err != nil {
					return nil, err
				}
			}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plan.UID, Gid: plan.UID}}
		return inGroup(cmd, session)
	case plan.Container:
		box := filepath.Join(hierarchy, "box")
		if err := os.MkdirAll(box, 0o755); err != nil {
			return nil, err
		}
		cmd.Args = append([]string{"guest", boxed, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/proc/self/exe"
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS}
		return inGroup(cmd, box)
	}
	return nil, fmt.Errorf("there is no place %q", place)
}

func inGroup(cmd *exec.Cmd, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	return f, nil
}

// box becomes a command whose namespaces are there: its group is the top of what is mounted.
func box(argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts: %w", err)
	}
	if err := errors.Join(unix.Unmount(hierarchy, 0), unix.Mount("cgroup2", hierarchy, "cgroup2", 0, "")); err != nil {
		return fmt.Errorf("mount cgroups: %w", err)
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

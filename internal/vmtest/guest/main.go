//go:build linux

// Command guest is the first process of a virtual machine of a test: it makes the
// machine what a distribution makes of one, runs a command and switches it off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/vmtest/plan"
)

func main() {
	status := 1
	if err := run(&status); err != nil {
		fmt.Fprintln(os.Stdout, "guest:", err)
	}
	fmt.Fprintf(os.Stdout, "%s%d\n", plan.Ended, status)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // or the kernel panics, which ends it too
}

func run(status *int) error {
	data, err := os.ReadFile("/" + plan.Name)
	if err != nil {
		return err
	}
	var p plan.Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	for _, m := range p.Modules {
		if err := load(m); err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	if err := enter(); err != nil {
		return err
	}
	if err := controllers(); err != nil {
		return err
	}
	cmd := exec.Command(p.Command[0], p.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/tmp", p.Env, os.Stdout, os.Stdout
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		*status, err = exit.ExitCode(), nil
	} else if err == nil {
		*status = 0
	}
	return err
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// enter makes the disk the root, for a first root cannot be left by pivot_root.
func enter() error {
	for _, dir := range []string{"/dev", "/new"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	if err := unix.Mount("/dev/vda", "/new", "ext4", 0, "prjquota"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if err := unix.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), unix.Chdir("/")); err != nil {
		return err
	}
	for _, m := range []struct{ dir, kind, data string }{
		{"/proc", "proc", ""}, {"/sys", "sysfs", ""}, {"/dev", "devtmpfs", ""}, {"/sys/fs/cgroup", "cgroup2", ""},
		{"/dev/pts", "devpts", "mode=620,ptmxmode=666"}, {"/dev/shm", "tmpfs", ""}, {"/run", "tmpfs", ""},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return unix.Chmod("/tmp", 0o1777)
}

// controllers hands every controller to the groups below the first one.
func controllers() error {
	have, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(have)) {
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("hand out controller %s: %w", c, err)
		}
	}
	return nil
}

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

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/test/vm/plan"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == boxed {
		fmt.Fprintln(os.Stderr, "guest:", box(os.Args[2:]))
		os.Exit(1)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stdout, "guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // or the kernel panics, which ends it too
}

func run() error {
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
	for _, c := range p.Commands {
		status, err := do(c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		fmt.Fprintf(os.Stdout, "%s%d\n", plan.Ended, status)
	}
	return nil
}

// do runs a command and returns how it ended.
func do(c plan.Command) (status int, err error) {
	clear()
	if err := controllers(c.Without); err != nil {
		return 0, err
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/tmp", c.Env, os.Stdout, os.Stdout
	group, err := put(cmd, c.Place)
	if err == nil {
		err = cmd.Start()
	}
	_ = group.Close() // or no group exists
	if err != nil {
		return 0, err
	}
	err = cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 0, err
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
	// What udev does, where the module is loaded.
	if err := unix.Chmod("/dev/net/tun", 0o666); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return unix.Chmod("/tmp", 0o1777)
}

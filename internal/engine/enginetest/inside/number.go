//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// number does one of three steps; each is a process of the one before.
func number(step string, args []string) error {
	switch step {
	case "numbered":
		return numbered(args[0])
	case "number-ids":
		return numberIDs(args[0])
	}
	return mapNumber(args)
}

// mapNumber does what an agent does to show a program the one id of a sandbox under another
// number: it maps it in a user namespace, by a mount of /proc of its own where the kernel is the
// host's. The program writes a file and says who it is.
func mapNumber(args []string) error {
	if len(args) < 3 {
		return errors.New("needs an id, a file and whether the kernel is shared")
	}
	proc := "/proc"
	if args[2] == "true" {
		fd, err := unix.OpenTree(unix.AT_FDCWD, proc, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("copy the mount of /proc: %w", err)
		}
		proc = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	cmd := exec.Command("/proc/self/exe", "numbered", args[1])
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var failed error
	for _, name := range []string{"gid_map", "uid_map"} {
		f, err := os.OpenFile(proc+"/"+strconv.Itoa(cmd.Process.Pid)+"/"+name, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(args[0] + " 0 1\n")
			f.Close()
		}
		failed = errors.Join(failed, err)
	}
	in.Close()
	_, err = io.Copy(os.Stdout, out)
	return errors.Join(failed, err, cmd.Wait())
}

// numbered waits until its ids are mapped, and executes itself again to be what a program is.
func numbered(file string) error {
	if _, err := bufio.NewReader(os.Stdin).ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for the ids: %w", err)
	}
	return unix.Exec("/proc/self/exe", []string{os.Args[0], "number-ids", file}, nil)
}

// numberIDs writes a file and says who it does that as.
func numberIDs(file string) error {
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return err
	}
	fmt.Println(os.Getuid(), os.Getgid(), st.Uid, st.Gid, caps[0].Permitted|caps[1].Permitted)
	for _, id := range []int{0, os.Getuid() + 1} {
		if err := unix.Setresuid(id, id, id); err == nil {
			fmt.Println("it could become", id)
		}
		if err := unix.Chown(file, id, -1); err == nil {
			fmt.Println("it could give a file to", id)
		}
	}
	return nil
}

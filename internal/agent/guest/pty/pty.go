//go:build linux

// Package pty opens terminals inside a sandbox.
package pty

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open opens a new terminal. The path is of its other side. The file does not block, and the caller closes it.
// An error is the kernel's.
func Open() (*os.File, string, error) {
	const device = "/dev/ptmx"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: device, Err: err}
	}
	f := os.NewFile(uintptr(fd), device)
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		f.Close()
		return nil, "", os.NewSyscallError("ioctl", err)
	}
	return f, "/dev/pts/" + strconv.FormatUint(uint64(n), 10), nil
}

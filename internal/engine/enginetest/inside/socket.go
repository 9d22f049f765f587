//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// connectUnix connects to a socket by each kind of name, and prints the
// kinds that worked: a stream, datagrams with and without a connection, and each by its
// path, from its directory, over a symlink and through a descriptor.
func connectUnix(path string) error {
	dir, base := filepath.Split(path)
	link := "/tmp/to" + strings.ReplaceAll(path, "/", "-")
	if err := os.Symlink(path, link); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	held, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(held)
	if err := os.Chdir(dir); err != nil {
		return err
	}
	names := map[string]string{"path": path, "relative": base, "symlink": link, "descriptor": "/proc/self/fd/" + strconv.Itoa(held), "root": "/proc/self/root" + path}
	for way, name := range names {
		to := &unix.SockaddrUnix{Name: name}
		for kind, call := range map[string]func(fd int) error{
			"stream":    func(fd int) error { return unix.Connect(fd, to) },
			"packet":    func(fd int) error { return unix.Connect(fd, to) },
			"datagram":  func(fd int) error { return unix.Connect(fd, to) },
			"unbound":   func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, to) },
			"unbound 2": func(fd int) error { return unix.Sendmsg(fd, []byte("x"), nil, to, 0) },
		} {
			sort := map[string]int{"stream": unix.SOCK_STREAM, "packet": unix.SOCK_SEQPACKET}[kind]
			if sort == 0 {
				sort = unix.SOCK_DGRAM
			}
			fd, err := unix.Socket(unix.AF_UNIX, sort|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			if err := call(fd); err == nil || errors.Is(err, unix.EPROTOTYPE) || errors.Is(err, unix.EAGAIN) {
				fmt.Println("reached:", kind, "by", way)
			}
			_ = unix.Close(fd)
		}
	}
	return nil
}

// writePipe opens a named pipe to write.
func writePipe(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// ownSockets uses sockets and a pipe of its own in a directory, as programs do there.
func ownSockets(dir string) error {
	path := filepath.Join(dir, "own.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer ln.Close()
	moved := filepath.Join(dir, "moved.sock")
	if err := os.Rename(path, moved); err != nil {
		return err
	}
	go func() {
		if c, err := ln.Accept(); err == nil {
			_, _ = c.Write([]byte("x"))
			c.Close()
		}
	}()
	c, err := net.Dial("unix", moved)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return err
	}
	at := &net.UnixAddr{Name: filepath.Join(dir, "own.dgram"), Net: "unixgram"}
	to, err := net.ListenUnixgram("unixgram", at)
	if err != nil {
		return err
	}
	defer to.Close()
	from, err := net.DialUnix("unixgram", nil, at)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Write([]byte("x")); err != nil {
		return err
	}
	if _, err := to.Read(make([]byte, 1)); err != nil {
		return err
	}
	pipe := filepath.Join(dir, "own.pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return err
	}
	return errors.Join(writePipe(pipe), os.Remove(moved))
}

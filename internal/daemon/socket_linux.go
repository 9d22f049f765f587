package daemon

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketPair makes two sockets that are connected.
func socketPair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// listenPrivate makes a socket that only its owner can connect to. One that is bound takes
// the mode that its descriptor has, so that it is never another. The process's mask would be
// everybody's, and others make files.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) { refused = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, refused)
	}}
	return private.Listen(ctx, "unix", path)
}

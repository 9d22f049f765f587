package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// socketPair makes two sockets that are connected.
func socketPair() ([2]int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return fds, err
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return fds, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
		}
	}
	return fds, nil
}

// listenPrivate makes a socket that only its owner can connect to. It is made in a
// directory that no other user can enter and moved from there, for its descriptor has no
// mode. It is not removed when it is closed; the next daemon replaces it.
func listenPrivate(ctx context.Context, path string) (ln net.Listener, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	made := filepath.Join(dir, "s")
	if ln, err = (&net.ListenConfig{}).Listen(ctx, "unix", made); err != nil {
		return nil, err
	}
	if unixLn, ok := ln.(*net.UnixListener); ok {
		unixLn.SetUnlinkOnClose(false)
	}
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

package inner

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// serveAt returns a listening unix socket at a path in a directory that only this user can enter. A
// socket of an earlier agent is replaced.
func serveAt(name string) ([]int, error) {
	dir := path.Dir(name)
	if err := makeDirs(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if err := unix.Unlink(name); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on the agent's socket: %w", err)
	}
	return []int{fd}, nil
}

// makeDirs makes a directory and all above it that are missing. Only the last one gets the mode.
func makeDirs(dir string, mode uint32) error {
	err := unix.Mkdir(dir, mode)
	if errors.Is(err, unix.ENOENT) && dir != "/" {
		if err = makeDirs(path.Dir(dir), 0o755); err == nil {
			err = unix.Mkdir(dir, mode)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

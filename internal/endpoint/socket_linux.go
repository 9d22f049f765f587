package endpoint

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// isOwnSocket says whether this process listens at the other end.
func isOwnSocket(conn net.Conn) (bool, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return false, fmt.Errorf("a %T is no socket of a file", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("look at the socket: %w", err)
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return false, fmt.Errorf("look at the socket: %w", err)
	}
	if perr != nil {
		return false, fmt.Errorf("ask who listens: %w", perr)
	}
	return int(peer.Pid) == os.Getpid(), nil
}

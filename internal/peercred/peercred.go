// Package peercred says who is at the other end of a unix socket, and whether that
// process lives among the host's processes as this one does: in the same user namespace
// and the same process namespace. A uid alone does not tell: a process in a sandbox or a
// container can have the uid of the user that this process runs as.
package peercred

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrForeign says that the peer is in another user or process namespace, or that it
// cannot be proved that it is not.
var ErrForeign = errors.New("the process at the other end of the socket is not proved to be in the namespaces of this one")

// UID is the uid of the process that connected, as the kernel noted it then. The error
// is not nil when it cannot be known. It wraps ErrForeign when the uid is not to be
// trusted, because the process is or may be in other namespaces.
func UID(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("look at the socket: %w", err)
	}
	uid := -1
	var uerr error
	if err := raw.Control(func(fd uintptr) { uid, uerr = UIDOf(int(fd)) }); err != nil {
		return -1, fmt.Errorf("look at the socket: %w", err)
	}
	return uid, uerr
}

// foreign is an ErrForeign with its reason.
func foreign(format string, args ...any) (int, error) {
	return -1, fmt.Errorf("%w: %w", ErrForeign, fmt.Errorf(format, args...))
}

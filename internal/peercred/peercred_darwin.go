package peercred

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// UIDOf is UID for a descriptor of a connected socket. There are no namespaces here.
func UIDOf(fd int) (int, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, fmt.Errorf("ask who is at the other end of the socket: %w", err)
	}
	return int(cred.Uid), nil
}

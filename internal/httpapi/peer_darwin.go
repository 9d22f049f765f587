package httpapi

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// socketIsOwners is false: the kernel says who is at the other end of a socket.
const socketIsOwners = false

// peerUID is the uid of the process that connected, as the kernel noted it then;
// -1 when it cannot be known.
func peerUID(c net.Conn) int {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	if err != nil {
		return -1
	}
	return uid
}

// silence cannot be known.
func silence(*net.TCPConn) time.Duration { return 0 }

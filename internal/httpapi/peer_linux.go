package httpapi

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// socketIsOwners is false: the kernel says who is at the other end of a socket.
const socketIsOwners = false

// silence is for how long nothing was heard of the system at the other end: it
// acknowledges what it is sent even where its program reads nothing. 0 where it
// cannot be known.
func silence(c *net.TCPConn) time.Duration {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var ms uint32
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			ms = info.Last_ack_recv
		}
	})
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

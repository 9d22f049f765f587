package httpapi

import (
	"net"
	"time"
)

// socketIsOwners is false: the kernel says who is at the other end of a socket.
const socketIsOwners = false

// silence cannot be known.
func silence(*net.TCPConn) time.Duration { return 0 }

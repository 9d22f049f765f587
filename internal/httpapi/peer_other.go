//go:build !linux && !darwin && !windows

package httpapi

import (
	"net"
	"time"
)

// socketIsOwners is false where there is no daemon.
const socketIsOwners = false

// peerUID is unknown where there is no daemon.
func peerUID(net.Conn) int { return -1 }

// silence is unknown where there is no daemon.
func silence(*net.TCPConn) time.Duration { return 0 }

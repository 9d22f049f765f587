//go:build !linux && !darwin

package httpapi

import (
	"net"
	"time"
)

// peerUID is unknown where there is no daemon.
func peerUID(net.Conn) int { return -1 }

// silence is unknown where there is no daemon.
func silence(*net.TCPConn) time.Duration { return 0 }

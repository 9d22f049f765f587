//go:build !linux

package httpapi

import "net"

// peerUID is unknown where there is no daemon.
func peerUID(net.Conn) int { return -1 }

//go:build linux

package process

import (
	"golang.org/x/sys/unix"
)

// waitAny waits for any child to end and leaves it waitable, so that its pid
// stays taken until the table has forgotten it.
func waitAny() error {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
}

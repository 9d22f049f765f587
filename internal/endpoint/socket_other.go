//go:build !linux

package endpoint

import (
	"errors"
	"net"
)

// isOwnSocket cannot tell here, where there is no daemon with sandboxes of its own.
func isOwnSocket(net.Conn) (bool, error) { return false, errors.ErrUnsupported }

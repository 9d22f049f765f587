package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// openSocket connects to a socket of the machine's files. Who listens there is judged
// when it is connected to: the path may have come to mean another since it was granted.
func (u *upstream) openSocket(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", u.socket)
	if err != nil {
		return nil, fmt.Errorf("dial a socket: %w", err)
	}
	own, err := isOwnSocket(conn)
	if err != nil || own {
		conn.Close()
		return nil, &codedError{codeTargetDenied, errors.Join(err, errOwnSocket)}
	}
	return conn, nil
}

var errOwnSocket = errors.New("the daemon itself listens there, or it cannot be told who does")

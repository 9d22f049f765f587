package process

import (
	"context"
	"net"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// DialPort opens a stream to a port at 127.0.0.1 or ::1 inside. The end of ctx ends only
// the call; the stream is use of the sandbox until it is closed, and breaks when
// the sandbox ends. It has CloseWrite.
func (m *Runner) DialPort(ctx context.Context, caller policy.Caller, ref string, port int) (net.Conn, error) {
	return m.dialPort(ctx, caller, policy.VerbPort, ref, port)
}

func (m *Runner) dialPort(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string, port int) (net.Conn, error) {
	s, err := m.o.Find(ctx, caller, verb, ref)
	if err != nil {
		return nil, err
	}
	release := s.sandbox.Use()
	var conn net.Conn
	err = m.onProcess(ctx, s, func(ctx context.Context, client *agent.Client) (err error) {
		conn, err = client.DialPort(ctx, port)
		return err
	})
	if err != nil {
		release()
		return nil, err
	}
	return &portConn{Conn: conn, release: release}, nil
}

// portConn is a stream to a port that counts as use of its sandbox.
type portConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn; it may be called again.
func (c *portConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite ends what is sent; the other direction goes on.
func (c *portConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return api.Errorf(api.CodeUnsupported, "this stream has no end of its own for each direction")
	}
	return half.CloseWrite()
}

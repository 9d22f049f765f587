package ports

import (
	"context"
	"crypto/rand"
	"net"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// dialTimeout bounds how long an agent may take to connect to a port.
const dialTimeout = 30 * time.Second

// Options are what a [Service] is made of.
type Options struct {
	// Find returns the ports of the sandbox of that name, to a caller that may use the verb.
	Find func(caller policy.Caller, verb policy.Verb, ref string) (*Table, error)
	// Lookup returns the ports of the sandbox with an ID, or nil.
	Lookup func(id string) *Table
}

// Service opens, lists and closes ports of all sandboxes. It is safe for concurrent use.
type Service struct{ o Options }

// New returns a service.
func New(o Options) *Service { return &Service{o} }

// Opened is a port that was opened, with its token. The token of a public port is empty.
type Opened struct {
	Grant policy.PortGrant
	Token string
}

// OpenPort opens a port, or opens it again: then the earlier token and the connections that it
// allowed end.
func (s *Service) OpenPort(caller policy.Caller, ref string, permit policy.PortPermit) (Opened, error) {
	if !permit.Valid() {
		return Opened{}, api.Errorf(api.CodeDenied, "no policy has granted this port")
	}
	t, err := s.o.Find(caller, policy.VerbOpenPort, ref)
	if err != nil {
		return Opened{}, err
	}
	t.ops.Lock()
	defer t.ops.Unlock()
	if info := t.sandbox.Info(); info.State != api.StateRunning && !info.State.Held() {
		return Opened{}, api.Errorf(api.CodeState, "sandbox %s is %s, and its ports are closed", info.Name, info.State).
			WithHint("open ports of a sandbox that is running")
	}
	o := Opened{Grant: permit.Grant(time.Now().UTC().Truncate(time.Microsecond))}
	if !o.Grant.Public {
		o.Token = rand.Text()
		o.Grant.Token = policy.PortToken(o.Token)
	}
	p := t.newPort(o.Grant)
	was := t.put(o.Grant.Port, p)
	if err := t.sandbox.SavePorts(); err != nil {
		t.put(o.Grant.Port, was)
		p.end()
		return Opened{}, unrecorded(err)
	}
	if was != nil {
		was.end()
	}
	return o, nil
}

// OpenPorts lists the open ports of a sandbox.
func (s *Service) OpenPorts(caller policy.Caller, verb policy.Verb, ref string) ([]policy.PortGrant, error) {
	t, err := s.o.Find(caller, verb, ref)
	if err != nil {
		return nil, err
	}
	return t.Grants(), nil
}

// ClosePort closes a port, and ends the connections to it.
func (s *Service) ClosePort(caller policy.Caller, ref string, n int) error {
	t, err := s.o.Find(caller, policy.VerbClosePort, ref)
	if err != nil {
		return err
	}
	t.ops.Lock()
	defer t.ops.Unlock()
	if t.find(n) == nil {
		return api.Errorf(api.CodeNotFound, "port %d of the sandbox is not open", n).WithHint("`cloche port ls` lists open ports")
	}
	was := t.put(n, nil)
	if err := t.sandbox.SavePorts(); err != nil {
		t.put(n, was)
		return unrecorded(err)
	}
	was.end()
	return nil
}

func unrecorded(err error) error {
	return api.Errorf(api.CodeInternal, "the open ports could not be put on record").WithCause(err)
}

// PortGrant returns an open port of the sandbox with an ID, and the sandbox. The grant is nil if the
// port is not open, and the sandbox is zero if it does not exist.
func (s *Service) PortGrant(id string, n int) (*policy.PortGrant, api.Sandbox) {
	t := s.o.Lookup(id)
	if t == nil {
		return nil, api.Sandbox{}
	}
	info := t.sandbox.Info()
	if p := t.find(n); p != nil {
		return &p.grant, info
	}
	return nil, info
}

// UsePort returns an open port to a request that was granted.
func (s *Service) UsePort(id string, permit policy.PortUsePermit) (*Use, error) {
	if !permit.Valid() {
		return nil, api.Errorf(api.CodeDenied, "no policy has granted this request")
	}
	if t := s.o.Lookup(id); t != nil {
		// It can have been opened again meanwhile, with another token.
		if p := t.find(permit.Grant().Port); p != nil && p.grant.CreatedAt.Equal(permit.Grant().CreatedAt) {
			return &Use{table: t, port: p}, nil
		}
	}
	return nil, api.Errorf(api.CodeNotFound, "the port is not open")
}

// Use is a granted use of an open port.
type Use struct {
	table *Table
	port  *port
}

// Grant is the open port.
func (u *Use) Grant() policy.PortGrant { return u.port.grant }

// Live ends when the port is closed, opened again or expires.
func (u *Use) Live() context.Context { return u.port.live }

// Dial connects to the port. The end of ctx ends only the call; the connection is use of the sandbox
// until it is closed.
func (u *Use) Dial(ctx context.Context) (net.Conn, error) {
	if err := u.table.sandbox.Wake(ctx); err != nil {
		return nil, err
	}
	if info := u.table.sandbox.Info(); info.State != api.StateRunning {
		e := api.Errorf(api.CodeState, "sandbox %s is %s", info.Name, info.State)
		e.Retryable = info.State.Held()
		return nil, e
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	release := u.table.sandbox.Use()
	client, err := u.table.client(ctx)
	var conn net.Conn
	if err == nil {
		conn, err = dial(ctx, u.table.sandbox, client, u.port.grant.Port)
	}
	if err != nil {
		release()
		return nil, err
	}
	return &usedConn{Conn: conn, release: release}, nil
}

func dial(ctx context.Context, sandbox Sandbox, client *agent.Client, n int) (net.Conn, error) {
	conn, err := client.DialPort(ctx, n)
	if err == nil {
		return conn, nil
	}
	select {
	case <-client.Done():
		return nil, sandbox.Explain(err)
	default: // it is what the agent answered
		return nil, err
	}
}

// usedConn is a connection that counts as use of its sandbox.
type usedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn; it may be called again.
func (c *usedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite ends what is sent; the other direction goes on.
func (c *usedConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return api.Errorf(api.CodeUnsupported, "this connection has no end of its own for each direction")
	}
	return half.CloseWrite()
}

package agent

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxIncoming bounds the connections of all listeners of a Client.
	maxIncoming = 1024
	// incomingTime bounds how long a stream of the agent's may take to say what it is.
	incomingTime = 10 * time.Second
	// partingTime bounds what a closed connection still sends.
	partingTime = time.Second
)

// ListenOptions say where to listen inside.
type ListenOptions struct {
	// ID names the listener inside, where it outlives this connection: who asks for the
	// same again takes it over.
	ID   string
	Port int
	// Socket is the path of a socket to listen at instead of a port. It belongs to User,
	// who alone may connect to it; without one to root, and everybody may.
	Socket string
	User   string
	// Outside are directories in which the socket must not be, however its path leads
	// there: the sandbox shares them with others.
	Outside []string
	// HTTP answers 502 or 503 in HTTP to clients inside when the host is gone.
	HTTP bool
	// Connections bounds those at once; more are refused inside.
	Connections int
}

// Listener takes the connections that processes inside make to one port of their
// loopback. It is a net.Listener; what Accept returns has CloseWrite, Reset, which
// the other end sees as such, and Opaque, which says that it is HTTP no more.
type Listener struct {
	client *Client
	o      ListenOptions
	conns  chan net.Conn
	done   chan struct{}
	once   sync.Once
}

// Listen makes the agent listen at 127.0.0.1:port inside, and at [::1]:port where
// there is IPv6, or at a socket. What is taken is api.CodeConflict. ctx bounds only
// the call.
func (c *Client) Listen(ctx context.Context, o ListenOptions) (*Listener, error) {
	l := &Listener{client: c, o: o, conns: make(chan net.Conn), done: make(chan struct{})}
	// Before it is asked for: connections may come before the answer does.
	c.mu.Lock()
	if c.listeners[o.ID] != nil {
		c.mu.Unlock()
		return nil, api.Errorf(api.CodeExists, "there is a listener %s already", o.ID)
	}
	c.listeners[o.ID] = l
	c.mu.Unlock()
	r, err := c.askListen(ctx, o)
	if err == nil {
		switch {
		case r.Outcome == wire.ListenBound:
			return l, nil
		case r.Outcome == wire.ListenInUse && o.Socket != "":
			err = api.Errorf(api.CodeConflict, "there is something at %q in the sandbox already", o.Socket).
				WithHint("choose another path, or remove what is there")
		case r.Outcome == wire.ListenInUse:
			err = api.Errorf(api.CodeConflict, "port %d is in use in the sandbox", o.Port).
				WithHint("choose another port, or end what listens there")
		default:
			err = classify(fmt.Errorf("%w: outcome %q", wire.ErrFrame, bounded(string(r.Outcome))))
		}
	}
	l.Close()
	return nil, err
}

func (c *Client) askListen(ctx context.Context, o ListenOptions) (wire.ListenReply, error) {
	req := wire.Request{Op: wire.OpListen, Listen: &wire.Listen{
		ID: o.ID, Port: o.Port, Socket: api.Bytes(o.Socket), User: o.User, HTTP: o.HTTP, Most: o.Connections,
	}}
	since := req.Op.Since()
	if o.Socket != "" {
		since = wire.ListenSince
	}
	for _, dir := range o.Outside {
		req.Listen.Outside = append(req.Listen.Outside, api.Bytes(dir))
	}
	k, err := c.openSince(ctx, since, req)
	if err != nil {
		return wire.ListenReply{}, err
	}
	return reply[wire.ListenReply](k)
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
	case <-l.client.Done():
	}
	return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
}

// Close implements net.Listener. Inside it stays, and what connects is turned away.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.client.mu.Lock()
		delete(l.client.listeners, l.o.ID)
		l.client.mu.Unlock()
	})
	return nil
}

// Unlisten takes a listener away inside. Its connections go on. One that is not
// there is fine.
func (c *Client) Unlisten(ctx context.Context, id string) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpUnlisten, Listen: &wire.Listen{ID: id}})
	return err
}

// Addr implements net.Listener: the address inside.
func (l *Listener) Addr() net.Addr {
	if l.o.Socket != "" {
		return &net.UnixAddr{Name: l.o.Socket, Net: "unix"}
	}
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.o.Port}
}

// admit hands the streams that the agent opens to their listeners, and closes all
// others.
func (c *Client) admit() {
	for {
		s, err := c.session.AcceptStream()
		if err != nil {
			return
		}
		select {
		case c.incoming <- struct{}{}:
			c.doorman.Go(func() { c.receive(s) })
		default:
			s.Close()
		}
	}
}

// receive makes a connection of a stream, and waits until Accept takes it.
func (c *Client) receive(s *yamux.Stream) {
	c.nudge.BeginIdle()
	ctx, cancel := context.WithCancel(c.life)
	k := &call{Reader: wire.NewReader(s), Writer: wire.NewWriter(s), ctx: ctx, client: c, stream: s, nudge: c.nudge.Touch, stop: func() bool { return true }}
	k.free = func() {
		cancel()
		c.nudge.EndIdle()
		<-c.incoming
	}
	l, peer := c.listenerOf(k)
	if l == nil {
		k.end()
		return
	}
	conn := &incomingConn{portConn: portConn{k: k, port: l.o.Port, cancel: cancel}, peer: peer}
	select {
	case l.conns <- conn:
	case <-l.done:
		k.end()
	case <-c.Done():
		k.end()
	}
}

// listenerOf reads for whom a stream is, and from whom; nil if it has no listener.
func (c *Client) listenerOf(k *call) (*Listener, *wire.Peer) {
	_ = k.stream.SetReadDeadline(time.Now().Add(incomingTime))
	k.Max = wire.MaxHello
	kind, payload, err := k.Next()
	if err != nil || kind != wire.KindIncoming {
		return nil, nil
	}
	in, err := wire.Decode[wire.Incoming](payload)
	if err != nil || k.stream.SetReadDeadline(time.Time{}) != nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[in.Listener], in.Peer
}

// incomingConn is a connection that a process inside has made.
type incomingConn struct {
	portConn
	peer *wire.Peer
}

// Peer says which process inside it is, as its agent tells it; ok is false where that
// is not known. The pid is one of the sandbox's own.
func (c *incomingConn) Peer() (uid uint32, pid int, ok bool) {
	if c.peer == nil {
		return 0, 0, false
	}
	return c.peer.UID, c.peer.PID, true
}

// Close implements net.Conn: what was written arrives, and then the end of it.
func (c *incomingConn) Close() error {
	if c.closed.Load() {
		return nil
	}
	_ = c.k.stream.SetWriteDeadline(time.Now().Add(partingTime))
	_ = c.CloseWrite()
	return c.portConn.Close()
}

// Reset ends the connection so that the process sees that it broke off.
func (c *incomingConn) Reset() { _ = c.portConn.Close() }

// Opaque says that what follows is not HTTP.
func (c *incomingConn) Opaque() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.send(wire.KindOpaque, nil)
}

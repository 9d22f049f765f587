//go:build linux

package ports

import (
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// Backlog is how many connections wait to be accepted.
	Backlog = 1024
	// maxBuffer bounds the buffer of one direction of a connection.
	maxBuffer = 256 << 10

	maxListeners = 32
	// lingerTime is how long what a client still sends is thrown away after the last
	// word to it, which a reset would take from it.
	lingerTime = time.Second
	// maxListenID bounds the name of a listener.
	maxListenID = 128
)

// The last words to a client of HTTP that waits for an answer when the host is gone.
// The host says the same of itself in the same form.
const (
	farewellBody = `{"error":{"type":"bridge_error","code":"bridge_lost","message":"the connection to the host was lost","retryable":true}}`
	absentBody   = `{"error":{"type":"bridge_error","code":"bridge_absent","message":"the host does not serve this endpoint at the moment","retryable":true}}`
)

func lastWord(status, code, body string) []byte {
	return []byte("HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nX-Bridge-Error: " + code +
		"\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// Listeners are the listeners that the host has asked for.
type Listeners struct {
	id    identity.Identity
	users *identity.Users
	rules *pathwalk.Restrictions
	// port is the agent's own.
	port int
	// socket makes a Unix socket of a type, on the thread that programs may connect to.
	socket func(kind int) (int, error)

	mu   sync.Mutex
	byID map[string]*listener
	wg   sync.WaitGroup
}

// New returns the listeners of an agent that listens on port itself. Socket makes the Unix sockets
// that programs connect to.
func New(id identity.Identity, users *identity.Users, rules *pathwalk.Restrictions, port int, socket func(int) (int, error)) *Listeners {
	return &Listeners{id: id, users: users, rules: rules, port: port, socket: socket, byID: map[string]*listener{}}
}

// listener is one port of loopback, in one or two families, or one socket.
type listener struct {
	id    string
	port  int
	file  *socketFile // nil is that it has a port
	http  bool
	slots chan struct{}
	lns   []net.Listener
	// owner takes what connects; the last that asked for it.
	owner atomic.Pointer[session.Session]
}

// Listen makes a listener, or gives one to another connection.
func (ls *Listeners) Listen(p *session.Call, o *wire.Listen) error {
	if o == nil || o.ID == "" || len(o.ID) > maxListenID || !placed(o) || o.Most < 1 || o.Most > session.MaxStreams {
		return api.Invalid("listen", "the request does not say where to listen")
	}
	if o.Port == ls.port {
		return p.JSON(wire.KindReply, wire.ListenReply{Outcome: wire.ListenInUse})
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byID[o.ID]
	switch {
	case l != nil && (l.port != o.Port || l.file.path() != string(o.Socket)):
		return api.Errorf(api.CodeExists, "the listener is somewhere else: %d%s", l.port, l.file.path())
	case l == nil && len(ls.byID) >= maxListeners:
		return api.Errorf(api.CodeNoCapacity, "there are %d listeners, which is the most", maxListeners)
	case l == nil:
		l = &listener{id: o.ID, port: o.Port, http: o.HTTP, slots: make(chan struct{}, o.Most)}
		err := ls.bind(l, o)
		if errors.Is(err, unix.EADDRINUSE) {
			return p.JSON(wire.KindReply, wire.ListenReply{Outcome: wire.ListenInUse})
		}
		if err != nil {
			return err
		}
		ls.byID[o.ID] = l
		l.owner.Store(p.Session.Own())
		for _, ln := range l.lns {
			ls.wg.Go(func() { ls.accept(l, ln) })
		}
	}
	l.owner.Store(p.Session.Own())
	return p.JSON(wire.KindReply, wire.ListenReply{Outcome: wire.ListenBound})
}

// placed says whether a request names one place, a port or a socket.
func placed(o *wire.Listen) bool {
	if len(o.Socket) > 0 {
		return o.Port == 0
	}
	return o.Port >= 1 && o.Port <= 65535
}

// bind puts a listener in its place.
func (ls *Listeners) bind(l *listener, o *wire.Listen) error {
	if len(o.Socket) > 0 {
		ln, file, err := ls.bindSocket(o)
		if err != nil {
			return err
		}
		l.lns, l.file = []net.Listener{ln}, file
		return nil
	}
	if err := l.bindPort(); err != nil {
		return api.Errorf(api.CodeUnavailable, "port %d cannot be listened on: %w", o.Port, err)
	}
	return nil
}

// has says whether one listens on a port.
func (ls *Listeners) has(port int) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.byID {
		if l.port == port {
			return true
		}
	}
	return false
}

// bindPort listens on both families, or on IPv4 alone where there is no IPv6. Nothing
// inside can bind the same addresses. On gVisor the wildcard can be bound beside
// them, and gets nothing of what connects here: what is bound more closely goes
// before. The addresses can be used again at once, for what is left of their old
// connections would be in the way of another endpoint on the port.
func (l *listener) bindPort() error {
	port := strconv.Itoa(l.port)
	four, err := net.Listen("tcp4", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	six, err := net.Listen("tcp6", "[::1]:"+port)
	if errors.Is(err, unix.EADDRINUSE) {
		four.Close()
		return err
	}
	l.lns = append(l.lns, four)
	if err == nil {
		l.lns = append(l.lns, six)
	}
	return nil
}

// Unlisten takes a listener away; its connections go on.
func (ls *Listeners) Unlisten(o *wire.Listen) error {
	if o == nil {
		return api.Invalid("listen", "the request names no listener")
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byID[o.ID]
	if l == nil {
		return nil
	}
	delete(ls.byID, o.ID)
	for _, ln := range l.lns {
		ln.Close()
	}
	l.file.remove()
	return nil
}

// accept takes connections until the listener is closed.
func (ls *Listeners) accept(l *listener, ln net.Listener) {
	for failed := 0; ; {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Too many descriptors, or no memory: what is there already goes on.
			if failed++; failed > 100 {
				failed = 100
			}
			<-time.After(time.Duration(failed) * 5 * time.Millisecond)
			continue
		}
		failed = 0
		select {
		case l.slots <- struct{}{}:
			ls.wg.Go(func() {
				defer func() { <-l.slots }()
				l.carry(conn.(nearConn))
			})
		default:
			reset(conn)
		}
	}
}

// reset ends a connection so that the client sees that it broke off.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}

// nearConn is a connection of a process inside.
type nearConn interface {
	net.Conn
	CloseWrite() error
}

// line is one connection on its way to the host.
type line struct {
	*session.Call
	conn  nearConn
	nudge *agent.Nudger
	// asked: the client said something after the last that it was told.
	asked atomic.Bool
	// heard is closed when the client has said something, or never will.
	heard chan struct{}
	// opaque: it is not HTTP, or HTTP no more.
	opaque bool
	// over: what the client says is of no use any more.
	over atomic.Bool
}

// carry moves the bytes of one connection until nothing is left of it.
func (l *listener) carry(conn nearConn) {
	owner := l.owner.Load()
	p, err := owner.Open()
	if err != nil {
		l.turnAway(conn)
		return
	}
	defer p.Stream.Close()
	nudge := owner.Nudger
	nudge.BeginIdle()
	defer nudge.EndIdle()
	n := &line{
		Call: p, conn: conn, nudge: nudge, opaque: !l.http,
		heard: make(chan struct{}),
	}
	in := wire.Incoming{Listener: l.id}
	if owner.Version >= wire.ListenSince {
		in.Peer = peerOf(conn)
	}
	_ = n.JSON(wire.KindIncoming, in)
	nudge.Touch()
	var out sync.WaitGroup
	out.Go(n.outward)
	polite := n.inward()
	n.over.Store(true)
	_ = p.Stream.SetDeadline(time.Unix(1, 0))
	if !polite {
		reset(conn)
		out.Wait()
		return
	}
	_ = conn.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(lingerTime))
	out.Wait()
	conn.Close()
}

// turnAway ends a connection without an owner.
func (l *listener) turnAway(conn nearConn) {
	if !l.http {
		reset(conn)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(lingerTime))
	// An answer to nothing is one that some clients do not take.
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return
	}
	if _, err := conn.Write(lastWord("503 Service Unavailable", "bridge_absent", absentBody)); err != nil {
		return
	}
	_ = conn.CloseWrite()
	discard(conn)
}

// discard reads to the end, or to the deadline.
func discard(conn net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

// outward sends what the client says.
func (n *line) outward() {
	buf := make([]byte, 8<<10)
	heard := sync.OnceFunc(func() { close(n.heard) })
	defer heard()
	for {
		got, err := n.conn.Read(buf)
		if got > 0 {
			n.asked.Store(true)
			heard()
			if n.over.Load() || n.Bytes(wire.KindData, buf[:got]) != nil {
				// inward sees the same, and gives the client its last word.
				discard(n.conn)
				return
			}
			n.nudge.Touch()
		}
		if got == len(buf) && got < maxBuffer {
			buf = make([]byte, min(4*got, maxBuffer))
		}
		if err == nil {
			continue
		}
		if n.over.Load() || errors.Is(err, net.ErrClosed) {
			return
		}
		if _, broke := errors.AsType[*net.OpError](err); broke {
			n.Stream.Close() // without its end: it was reset
			_ = n.Stream.SetReadDeadline(time.Unix(1, 0))
			return
		}
		_ = n.End()
		n.nudge.Touch()
		return
	}
}

// inward hands the client what the host says. It returns whether the connection
// ends as the host ended it.
func (n *line) inward() (polite bool) {
	ended, told := false, false
	for {
		kind, payload, err := n.Next()
		switch {
		case err != nil && !ended && !n.opaque && n.Session.Closed():
			return n.farewell(told)
		case err != nil:
			return ended
		case kind == wire.KindEnd:
			ended = true
			_ = n.conn.CloseWrite()
		case kind == wire.KindOpaque:
			n.opaque = true
		case kind == wire.KindData && !ended:
			told = true
			n.asked.Store(false)
			if _, err := n.conn.Write(payload); err != nil {
				return false
			}
		default:
			return false
		}
	}
}

// farewell gives a client its last word when the host is gone, if it waits for an
// answer or has just come and is about to ask. One that was told all it asked for sees
// the end of the connection, which says to every client that it may ask again.
func (n *line) farewell(told bool) (polite bool) {
	if !told {
		select {
		case <-n.heard:
		case <-time.After(lingerTime):
		}
	}
	if !n.asked.Load() {
		return false
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(lingerTime))
	_, err := n.conn.Write(lastWord("502 Bad Gateway", "bridge_lost", farewellBody))
	return err == nil
}

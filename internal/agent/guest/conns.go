//go:build linux

package guest

import (
	"crypto/subtle"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxStrangers bounds connections that have not shown the token. When it is
	// reached the oldest goes, so that processes inside, which can connect too,
	// cannot keep the host out by holding them.
	maxStrangers = 64
	strangerTime = 5 * time.Second
	maxSessions  = 16
)

// conns counts who is connected.
type conns struct {
	mu        sync.Mutex
	strangers []net.Conn
	sessions  []net.Conn
	// open are all that are not closed, with the one that the agent was born with for later.
	open map[net.Conn]bool
	// fewer is signaled when one of them was closed.
	fewer *sync.Cond
}

func newConns() *conns {
	d := &conns{open: map[net.Conn]bool{}}
	d.fewer = sync.NewCond(&d.mu)
	return d
}

// opened counts a connection until closed.
func (d *conns) opened(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[conn] = true
}

// closed says that a connection was closed and that nothing reads from it any more. Until then a close is not done.
func (d *conns) closed(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, conn)
	d.fewer.Broadcast()
}

// closeOthers closes every connection but one, and returns when they are closed. It does not wait for those that
// processes inside open meanwhile.
func (d *conns) closeOthers(own net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	others := maps.Clone(d.open)
	delete(others, own)
	for conn := range others {
		abort(conn)
	}
	for conn := range others {
		for d.open[conn] {
			d.fewer.Wait()
		}
	}
}

// admit adds a connection to a list and closes the oldest of it when it is full.
func (d *conns) admit(list *[]net.Conn, most int, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(*list) >= most {
		(*list)[0].Close()
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, conn)
}

func (d *conns) leave(list *[]net.Conn, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*list = slices.DeleteFunc(*list, func(c net.Conn) bool { return c == conn })
}

// abort closes a connection without a TIME-WAIT state. That would be a part of the memory that is saved, stay for a minute after each
// resume, and swallow a connection of the host that has the same port by chance. gVisor makes no other while that one waits.
func abort(conn net.Conn) {
	if c, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	conn.Close()
}

// readTime bounds the wait for the host to read an answer.
const readTime = time.Second

// hangUp closes every connection of the host, and the one of the call when its answer was read. Those that the
// agent was born with are sockets of the host, which cannot be a part of the memory that is saved.
// With reattach, the streamed execs wait for their callers.
func (a *Agent) hangUp(p *session.Call, reattach bool) error {
	if reattach {
		a.procs.HoldStreams()
	}
	own := p.Session.Conn()
	a.conns.closeOthers(own)
	if err := p.Done(nil); err != nil {
		return err
	}
	_ = p.Stream.SetReadDeadline(time.Now().Add(readTime))
	_, _, _ = p.Next() // the host closes the stream when it has read the answer
	abort(own)
	return nil
}

// handle serves one connection, which is among the strangers.
func (a *Agent) handle(conn net.Conn) {
	a.conns.opened(conn)
	defer a.conns.closed(conn)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(strangerTime))
	theirs, err := authenticate(conn, a.token)
	// Before the answer: the host uses the connection from then on, and no stranger may end it.
	a.conns.leave(&a.conns.strangers, conn)
	if err != nil {
		return
	}
	version, err := agree(conn, theirs, a.versions)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	a.converse(conn, version)
}

// handleSpare serves the connection that the agent was born with for later. Only
// the host has its other end, so its first word may take any time.
func (a *Agent) handleSpare(conn net.Conn) {
	a.conns.opened(conn)
	defer a.conns.closed(conn)
	defer conn.Close()
	theirs, err := authenticate(conn, a.token)
	if err != nil {
		return
	}
	if version, err := agree(conn, theirs, a.versions); err == nil {
		a.converse(conn, version)
	}
}

// converse serves a connection that has shown the token.
func (a *Agent) converse(conn net.Conn, version int) {
	a.conns.admit(&a.conns.sessions, maxSessions, conn)
	defer a.conns.leave(&a.conns.sessions, conn)
	heard := &agent.Hearing{Conn: conn}
	mux, err := yamux.Server(wire.Coalesce(heard), agent.MuxConfig())
	if err != nil {
		return
	}
	s := session.New(mux, heard, version, a.given)
	s.Holds = a.procs.Holds()
	defer s.End()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { // before the wait: ends every stream
		mux.Close() // it waits for who reads
		a.conns.closed(conn)
	}()
	slots := make(chan struct{}, session.MaxStreams)
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				a.answer(stream, s)
			})
		default:
			_ = wire.NewWriter(stream).JSON(wire.KindFail, api.Errorf(api.CodeNoCapacity, "%d calls on this connection are open, which is the most", session.MaxStreams))
			stream.Close()
		}
	}
}

// token is what a connection must show. It is safe for concurrent use.
type token struct {
	mu    sync.Mutex
	value []byte
}

func newToken(value []byte) *token { return &token{value: value} }

// is reports whether a connection has shown the token.
func (t *token) is(shown []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return subtle.ConstantTimeCompare(shown, t.value) == 1
}

// set replaces the token and the array that had it.
func (t *token) set(value []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.value)
	t.value = value
}

// renew gives the agent another token, and its sandbox another host name. Who was let in with the old token is cut off.
func (a *Agent) renew(p *session.Call, r *wire.Renew) error {
	if r == nil || len(r.Token) < minToken {
		return api.Invalid("renew.token", "it is shorter than %d bytes", minToken)
	}
	a.token.set(r.Token)
	a.conns.closeOthers(p.Session.Conn())
	if r.Hostname != "" {
		_ = unix.Sethostname([]byte(r.Hostname)) // not allowed everywhere
	}
	a.procs.Restored()
	return p.Done(nil)
}

// authenticate checks the token, and returns the versions that the host speaks. A wrong token gets no
// answer.
func authenticate(conn net.Conn, token *token) (theirs []int, err error) {
	h, err := wire.ReadFirst[wire.Hello](conn, wire.KindHello)
	if err != nil {
		return nil, err
	}
	if !token.is(h.Token) {
		return nil, fmt.Errorf("wrong token")
	}
	return h.Versions, nil
}

// agree chooses a version and tells the host.
func agree(conn net.Conn, theirs, versions []int) (int, error) {
	v := wire.Choose(versions, theirs)
	if err := wire.NewWriter(conn).JSON(wire.KindWelcome, wire.Welcome{Version: v, Versions: versions}); err != nil {
		return 0, err
	}
	if v == 0 {
		return 0, fmt.Errorf("no protocol version in common with %v", theirs)
	}
	return v, nil
}

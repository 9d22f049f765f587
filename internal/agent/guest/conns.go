//go:build linux

package guest

import (
	"crypto/subtle"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

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
}

func newConns() *conns { return &conns{} }

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

// handle serves one connection, which is among the strangers.
func (a *Agent) handle(conn net.Conn) {
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
	defer s.End()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer mux.Close() // before the wait: ends every stream
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

// authenticate checks the token, and returns the versions that the host speaks. A wrong token gets no
// answer.
func authenticate(conn net.Conn, token []byte) (theirs []int, err error) {
	h, err := wire.ReadFirst[wire.Hello](conn, wire.KindHello)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(h.Token, token) != 1 {
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

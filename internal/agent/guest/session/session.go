//go:build linux

package session

import (
	"net"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// MaxStreams bounds the calls of a session that are open.
const MaxStreams = 2048

// Session is a connection that has shown the token.
type Session struct {
	// Holds is [process.Manager.Holds] when the session began.
	Holds   int64
	mux     *yamux.Session
	heard   *agent.Hearing
	Version int // of the protocol on it
	once    sync.Once
	// Nudger is set when the session owns a listener and the connection is not direct.
	Nudger *agent.Nudger
	direct bool
	wg     sync.WaitGroup // of the calls' readers
}

// New returns the session of a connection. Direct says that the connection comes from the host
// itself, so that nothing on the way holds data back.
func New(mux *yamux.Session, heard *agent.Hearing, version int, direct bool) *Session {
	return &Session{mux: mux, heard: heard, Version: version, direct: direct}
}

// Done is closed when the connection has ended.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Own prepares the session to own listeners.
func (s *Session) Own() *Session {
	s.once.Do(func() {
		if !s.direct {
			s.Nudger = agent.NewNudger(s.mux, s.heard)
		}
	})
	return s
}

// End waits for the goroutines of the session. Its connection is closed.
func (s *Session) End() {
	s.wg.Wait()
	s.once.Do(func() {})
	s.Nudger.Wait()
}

// Call is the session's call on a stream that the host has opened.
func (s *Session) Call(stream *yamux.Stream) *Call {
	return &Call{wire.NewReader(stream), wire.NewWriter(stream), stream, s}
}

// Open opens a stream to the host.
func (s *Session) Open() (*Call, error) {
	stream, err := s.mux.OpenStream()
	if err != nil {
		return nil, err
	}
	return s.Call(stream), nil
}

// Conn returns the connection of the session.
func (s *Session) Conn() net.Conn { return s.heard.Conn }

// Closed reports whether the connection is over.
func (s *Session) Closed() bool { return s.mux.IsClosed() }

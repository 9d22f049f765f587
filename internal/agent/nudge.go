package agent

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// How long a call may hear nothing before the connection is nudged: nudgeMin at
// first, doubling to nudgeMax as long as the silence lasts.
const (
	nudgeMin = 20 * time.Millisecond
	nudgeMax = 500 * time.Millisecond
	// maxNudges bounds the pings that wait for their answer.
	maxNudges = 4
)

// nudger pings a silent connection while a call waits on it.
//
// gVisor's port forwarder, which carries the connection, first finds nothing to
// copy, then asks to be woken, and does not look again in between: what arrives
// in that moment stays where it is until something else does. A ping is
// something else, in both directions.
type nudger struct {
	session *yamux.Session
	heard   *hearing
	calls   atomic.Int64
	begun   chan struct{}
	wg      sync.WaitGroup
}

// hearing counts the reads that brought something.
type hearing struct {
	net.Conn
	reads atomic.Int64
}

func (h *hearing) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.reads.Add(1)
	}
	return n, err
}

func newNudger(session *yamux.Session, heard *hearing) *nudger {
	n := &nudger{session: session, heard: heard, begun: make(chan struct{}, 1)}
	n.wg.Go(n.run)
	return n
}

// begin and end say that a call waits on the connection.
func (n *nudger) begin() {
	n.calls.Add(1)
	select {
	case n.begun <- struct{}{}:
	default:
	}
}

func (n *nudger) end() { n.calls.Add(-1) }

// run ends with the session.
func (n *nudger) run() {
	slots := make(chan struct{}, maxNudges)
	timer := time.NewTimer(nudgeMin)
	defer timer.Stop()
	for {
		select {
		case <-n.begun:
		case <-n.session.CloseChan():
			return
		}
		wait, last := nudgeMin, n.heard.reads.Load()
		for n.calls.Load() > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-n.session.CloseChan():
				return
			}
			if now := n.heard.reads.Load(); now != last {
				wait, last = nudgeMin, now
				continue
			}
			n.ping(slots)
			wait = min(2*wait, nudgeMax)
		}
	}
}

// ping sends a ping and waits for nothing; its answer is heard like all else,
// and does not count as what the call waits for.
func (n *nudger) ping(slots chan struct{}) {
	select {
	case slots <- struct{}{}:
	default:
		return
	}
	n.wg.Go(func() {
		defer func() { <-slots }()
		if _, err := n.session.Ping(); err == nil {
			n.heard.reads.Add(-1)
		}
	})
}

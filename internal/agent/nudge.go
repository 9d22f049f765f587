package agent

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// How long a call may hear nothing before the connection is nudged: nudgeMin at
// first and after each sending, doubling to nudgeMax as long as the silence lasts.
const (
	nudgeMin = 20 * time.Millisecond
	nudgeMax = 500 * time.Millisecond
	// idleNudgeMax is for when only calls wait that may be silent for long. What
	// would be left lying arrives right after something else, so a silence that was
	// broken by a few nudges holds nothing back.
	idleNudgeMax = 10 * time.Second
	// maxNudges bounds the pings that wait for their answer.
	maxNudges = 4
)

// Nudger pings a silent connection while a call waits on it. A nil Nudger does
// nothing.
//
// gVisor's port forwarder, which carries the connection, first finds nothing to
// copy, then asks to be woken, and does not look again in between: what arrives
// in that moment stays where it is until something else does. A ping is
// something else, in both directions.
type Nudger struct {
	session pinged
	heard   *Hearing
	calls   atomic.Int64 // that wait
	idle    atomic.Int64 // that may be silent for long
	begun   chan struct{}
	wg      sync.WaitGroup
	// touched is when something was sent last, in nanoseconds since born.
	born    time.Time
	touched atomic.Int64
	// resting: run looks at touched only when it is woken.
	resting atomic.Bool
}

// pinged is what a *yamux.Session is to a Nudger.
type pinged interface {
	Ping() (time.Duration, error)
	CloseChan() <-chan struct{}
}

// Hearing counts the reads that brought something.
type Hearing struct {
	net.Conn
	reads atomic.Int64
}

// Read implements net.Conn.
func (h *Hearing) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.reads.Add(1)
	}
	return n, err
}

// HoldsBack is what a connection implements whose carrier may keep what arrives until
// more does: it has to be nudged.
type HoldsBack interface{ HoldsBack() }

// NewNudger begins to nudge the connection of session, which reads it by heard, as
// soon as something waits. It ends with the session; Wait waits for that.
func NewNudger(session pinged, heard *Hearing) *Nudger {
	n := &Nudger{session: session, heard: heard, begun: make(chan struct{}, 1), born: time.Now()}
	n.resting.Store(true)
	n.wg.Go(n.run)
	return n
}

// begin and end say that a call waits on the connection.
func (n *Nudger) begin() {
	if n != nil {
		n.calls.Add(1)
		n.Touch()
	}
}

func (n *Nudger) end() {
	if n != nil {
		n.calls.Add(-1)
	}
}

// BeginIdle says that something waits that may be silent for long.
func (n *Nudger) BeginIdle() {
	if n != nil {
		n.idle.Add(1)
		n.Touch()
	}
}

// EndIdle is the end of that.
func (n *Nudger) EndIdle() {
	if n != nil {
		n.idle.Add(-1)
	}
}

// Touch says that something was sent. It wakes run only if run rests.
func (n *Nudger) Touch() {
	if n == nil {
		return
	}
	n.touched.Store(int64(time.Since(n.born)))
	if !n.resting.Load() {
		return
	}
	select {
	case n.begun <- struct{}{}:
	default:
	}
}

// Wait returns when the session has ended and nothing is left of the Nudger.
func (n *Nudger) Wait() {
	if n != nil {
		n.wg.Wait()
	}
}

// run ends with the session.
func (n *Nudger) run() {
	slots := make(chan struct{}, maxNudges)
	timer := time.NewTimer(nudgeMin)
	defer timer.Stop()
	for {
		n.resting.Store(true)
		if n.calls.Load()+n.idle.Load() == 0 {
			select {
			case <-n.begun:
			case <-n.session.CloseChan():
				return
			}
		}
		if !n.watch(timer, slots) {
			return
		}
	}
}

// watch nudges until nothing waits any more; false is that the session has ended.
func (n *Nudger) watch(timer *time.Timer, slots chan struct{}) bool {
	wait, pause, last, seen := nudgeMin, nudgeMin, n.heard.reads.Load(), n.touched.Load()
	for n.calls.Load()+n.idle.Load() > 0 {
		n.resting.Store(pause > nudgeMin)
		if now := n.touched.Load(); pause > nudgeMin && now != seen {
			// A sender came before it could know that run rests.
			wait, pause, seen = nudgeMin, nudgeMin, now
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-n.begun:
			wait, pause = nudgeMin, nudgeMin
			continue
		case <-n.session.CloseChan():
			return false
		}
		if now := n.heard.reads.Load(); now != last {
			wait, pause, last = nudgeMin, nudgeMin, now
			continue
		}
		seen = n.touched.Load()
		if silent := time.Since(n.born) - time.Duration(seen); silent < nudgeMin {
			wait, pause = nudgeMin, nudgeMin-silent
			continue
		}
		n.ping(slots)
		most := idleNudgeMax
		if n.calls.Load() > 0 {
			most = nudgeMax
		}
		wait = min(2*wait, most)
		pause = wait
	}
	return true
}

// ping sends a ping and waits for nothing; its answer is heard like all else,
// and does not count as what the call waits for.
func (n *Nudger) ping(slots chan struct{}) {
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

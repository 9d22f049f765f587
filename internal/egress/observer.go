package egress

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// Observer is told of everything that leaves and of everything that may not. Its
// methods are called by many goroutines, on the way of the flow they speak of, so
// they must not block.
type Observer interface {
	// Opened is called when a flow was let through, before its first byte leaves.
	Opened(Flow)
	// Closed is called once for each that was Opened, and for each that was allowed
	// and did not come about.
	Closed(Flow)
	// Refused is called for what may not leave. Of a flood only some are told, and
	// the next that is says how many were not.
	Refused(Refused)
}

// Flow is one connection that was allowed.
type Flow struct {
	// ID is unique.
	ID string
	// Name is what was asked for; empty for a listed address.
	Name rule.Name
	Port uint16
	// Addr is where it went; not valid when an upstream proxy knows alone, or when
	// it went nowhere.
	Addr       netip.Addr
	ResolvedBy upstream.ResolvedBy
	// Rule is the one that allowed it.
	Rule     string
	Protocol Protocol
	Started  time.Time
	// The rest is known when it is closed.
	Ended time.Time
	// BytesOut and BytesIn are what left the sandbox and what came back.
	BytesOut, BytesIn int64
	// Reason is why it ended if neither side ended it: a text of this package, with
	// the machine's error if it could not connect.
	Reason string
}

// Protocol is what a flow was seen to be.
type Protocol string

// The protocols.
const (
	HTTP   Protocol = "http"
	TLS    Protocol = "tls"
	HTTPS  Protocol = "https" // TLS that was opened
	Opaque Protocol = "tcp"   // not looked at
)

// Stage is where something was refused.
type Stage string

// The stages.
const (
	// StageName: a question for a name.
	StageName Stage = "name"
	// StageConnect: a connection that was not made.
	StageConnect Stage = "connect"
	// StageFirst: a connection whose first bytes did not agree.
	StageFirst Stage = "first"
	// StageRequest: an HTTP request.
	StageRequest Stage = "request"
	// StageFlow: a flow that was let through, and then no longer.
	StageFlow Stage = "flow"
	// StageDatagram: a datagram.
	StageDatagram Stage = "datagram"
)

// Refused is one thing that was held back.
type Refused struct {
	rule.Refusal
	Time  time.Time
	Stage Stage
	// Name is the host as far as it is known; for StageName as it was asked, without
	// the dot at its end and with escapes where it is not plain.
	Name string
	// Addr is what the sandbox connected or sent to; not valid for StageName.
	Addr netip.Addr
	Port uint16
	// Method and Target are those of a request; Target is cut.
	Method, Target string
	// Suppressed is how many refusals before this one were not told.
	Suppressed int64
}

const (
	refusalBurst  = 100
	refusalPerSec = 20
	maxTarget     = 400
)

// throttle lets a burst of refusals be told, and then some in each second.
type throttle struct {
	mu         sync.Mutex
	tokens     float64
	at         time.Time
	suppressed int64
}

// pass says whether one may be told now, and how many before it were not.
func (t *throttle) pass(now time.Time) (bool, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.IsZero() {
		t.tokens = refusalBurst
	} else {
		t.tokens = min(refusalBurst, t.tokens+now.Sub(t.at).Seconds()*refusalPerSec)
	}
	t.at = now
	if t.tokens < 1 {
		t.suppressed++
		return false, 0
	}
	t.tokens--
	n := t.suppressed
	t.suppressed = 0
	return true, n
}

// refused tells the observer.
func (g *Gate) refused(r Refused) {
	if g.observer == nil {
		return
	}
	r.Time = time.Now()
	ok, n := g.throttle.pass(r.Time)
	if !ok {
		return
	}
	if len(r.Target) > maxTarget {
		r.Target = r.Target[:maxTarget] + "..."
	}
	r.Suppressed = n
	g.observer.Refused(r)
}

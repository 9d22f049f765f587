// Package egress is the one network of a sandbox: every connection has a name and
// a rule that allows it, or it does not exist. It knows nothing of how packets
// come in; the package link brings them.
//
// A flow goes through four questions, and the first no ends it: was a name given
// for its address; do the rules allow the name and port; is the real address one
// that may be connected to; do the first bytes, and with plain HTTP each request,
// name the same host. For the hosts that the package intercept speaks of, TLS is
// opened and each request inside is asked the fourth as well.
package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// Options are what a Gate is made of.
type Options struct {
	// Rules are those in force at first; nil allows nothing.
	Rules *rule.Set
	// Table is the sandbox's own. It must not be nil.
	Table *resolver.Table
	// Upstream opens the real connections; nil is the machine's resolver and no proxy.
	Upstream *upstream.Dialer
	// Intercept opens the TLS of some hosts; nil opens none.
	Intercept *intercept.Interceptor
	// Observer is told what happens; it may be nil.
	Observer Observer
	// Own says whether a public address is this machine's, which is refused as the
	// private ones are; nil asks the network interfaces.
	Own    func(netip.Addr) bool
	Limits Limits
	// Ask waits for a decision about a connection that no rule covers, and reports whether
	// to judge it again; nil refuses it at once. With Ask, names that no rule covers are
	// resolved, because the connection asks.
	Ask func(context.Context, Asked) bool
	// Used is what the sandbox has used up before, under an earlier daemon.
	Used Usage
}

// Limits bound what one sandbox can take. A zero field has the default it names.
type Limits struct {
	// Flows at once; 0 is 256.
	Flows int
	// Connections in the sandbox's life; 0 is no bound.
	Connections int64
	// BytesOut and BytesIn in the sandbox's life, inside the connections; 0 is no
	// bound. The flow that reaches one is reset.
	BytesOut, BytesIn int64
	// Idle ends a flow on which nothing moved for so long; 0 is an hour.
	Idle time.Duration
	// First is how long the first bytes may take where they must agree; 0 is 20
	// seconds.
	First time.Duration
}

const (
	defaultFlows = 256
	defaultIdle  = time.Hour
	defaultFirst = 20 * time.Second
)

// Usage is what a sandbox has used up.
type Usage struct {
	Connections       int64
	BytesOut, BytesIn int64
}

// Gate is the network of one sandbox. Its methods are safe for any number of
// goroutines.
type Gate struct {
	ctx      context.Context // of all flows
	table    *resolver.Table
	dns      resolver.Resolver
	observer Observer
	own      func(netip.Addr) bool
	limits   Limits
	throttle throttle
	ask      func(context.Context, Asked) bool

	rules             atomic.Pointer[rule.Set] // written under mu
	upstream          atomic.Pointer[upstream.Dialer]
	intercept         atomic.Pointer[intercept.Interceptor] // the same
	connections       atomic.Int64
	bytesOut, bytesIn atomic.Int64
	budget            atomic.Pointer[Usage] // how much may be used; a zero field is no bound
	asks              atomic.Bool           // false is that nothing waits for a word

	mu     sync.Mutex
	flows  map[*flow]struct{}
	asking map[*flow]struct{} // those that wait for a word
	polite int                // connections that are accepted only to be told why not
	closed bool
	wg     sync.WaitGroup // of everything that Connect and ServeDNS do
}

// New makes a Gate. Of ctx it keeps the values: a gate ends by Close.
func New(ctx context.Context, o Options) *Gate {
	g := &Gate{
		ctx:   context.WithoutCancel(ctx),
		table: o.Table, observer: o.Observer, own: o.Own, limits: o.Limits, ask: o.Ask,
		flows: map[*flow]struct{}{}, asking: map[*flow]struct{}{},
	}
	if o.Rules == nil {
		o.Rules = &rule.Set{}
	}
	g.SetUpstream(o.Upstream)
	if g.own == nil {
		g.own = ownAddress
	}
	if g.limits.Flows == 0 {
		g.limits.Flows = defaultFlows
	}
	if g.limits.Idle == 0 {
		g.limits.Idle = defaultIdle
	}
	if g.limits.First == 0 {
		g.limits.First = defaultFirst
	}
	g.rules.Store(o.Rules)
	g.intercept.Store(o.Intercept)
	g.connections.Store(o.Used.Connections)
	g.bytesOut.Store(o.Used.BytesOut)
	g.bytesIn.Store(o.Used.BytesIn)
	g.SetBudget(Usage{Connections: o.Limits.Connections, BytesOut: o.Limits.BytesOut, BytesIn: o.Limits.BytesIn})
	g.asks.Store(o.Ask != nil)
	g.dns = resolver.Resolver{Table: o.Table, Rules: g.rules.Load, Ask: g.asks.Load, Refused: func(name string, r *rule.Refusal) {
		g.refused(Refused{Refusal: *r, Stage: StageName, Name: strings.TrimSuffix(name, ".")})
	}}
	return g
}

// ownAddress is true for the addresses of this machine's interfaces. When they
// cannot be listed every address may be one.
func ownAddress(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, own := range addrs {
		if n, ok := own.(*net.IPNet); ok && n.IP.Equal(net.IP(a.AsSlice())) {
			return true
		}
	}
	return false
}

// class says why a real address is not public, or nothing.
func (g *Gate) class(a netip.Addr) string {
	if c := rule.Class(a); c != "" {
		return c
	}
	if g.own(a) {
		return "an address of this machine"
	}
	return ""
}

// SetRules puts other rules in force and judges the flows in progress again:
// when it returns, those that the new rules do not allow are being reset. Nil
// allows nothing.
func (g *Gate) SetRules(s *rule.Set) {
	if s == nil {
		s = &rule.Set{}
	}
	g.mu.Lock()
	g.rules.Store(s)
	over := map[*flow]*rule.Refusal{}
	var settled []*flow
	for f := range g.flows {
		if ref := f.judgeAgain(s); ref != nil {
			over[f] = ref
			if f.settled {
				settled = append(settled, f)
			}
		}
	}
	for f := range g.asking {
		if f.verdict(s).Refusal() == nil {
			f.cancel(errLetOut)
		}
	}
	g.mu.Unlock()
	for f, ref := range over {
		f.cancel(ref)
	}
	// The others tell it themselves, for they are refused before they began.
	for _, f := range settled {
		f.tell(StageFlow, over[f])
	}
}

// SetBudget bounds from now on what may be used in all, what was used before included;
// a zero field is no bound.
func (g *Gate) SetBudget(most Usage) { g.budget.Store(&most) }

// SetAsk sets whether connections that no rule covers wait for a decision. False refuses those that
// wait.
func (g *Gate) SetAsk(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asks.Store(on && g.ask != nil)
	if on {
		return
	}
	for f := range g.asking {
		f.cancel(errNoAsking)
	}
}

var errNoAsking = errors.New("nothing waits for approval any more")

// Settle returns when nothing is left of the flows that were being reset: with what
// SetRules and SetIntercept had ended, or with ctx.
func (g *Gate) Settle(ctx context.Context) error {
	g.mu.Lock()
	var ending []*flow
	for f := range g.flows {
		if f.ctx.Err() != nil {
			ending = append(ending, f)
		}
	}
	g.mu.Unlock()
	for _, f := range ending {
		select {
		case <-f.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// SetUpstream opens real connections another way from now on; nil is as in Options.
func (g *Gate) SetUpstream(d *upstream.Dialer) {
	if d == nil {
		d = &upstream.Dialer{}
	}
	g.upstream.Store(d)
}

// SetIntercept opens other hosts from now on, or judges other requests. Flows in
// progress to a host that was opened or now is are reset: what they were allowed is
// not what they would be.
func (g *Gate) SetIntercept(next *intercept.Interceptor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.intercept.Swap(next)
	for f := range g.flows {
		if f.opens(before) || f.opens(next) {
			f.cancel(errRequests)
		}
	}
}

var errRequests = errors.New("the rules of requests to this host changed")

// Rules are those in force.
func (g *Gate) Rules() *rule.Set { return g.rules.Load() }

// Usage is what has been used up so far.
func (g *Gate) Usage() Usage {
	return Usage{Connections: g.connections.Load(), BytesOut: g.bytesOut.Load(), BytesIn: g.bytesIn.Load()}
}

// Flows is how many connections there are now.
func (g *Gate) Flows() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.flows) + g.polite
}

var errClosed = errors.New("the sandbox's network was closed")

// Close resets all flows and waits until they are gone. It is idempotent.
// Whatever comes after it is refused.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	for f := range g.flows {
		f.cancel(errClosed)
	}
	for f := range g.asking {
		f.cancel(errClosed)
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// Answer answers one DNS message; nil is no answer.
func (g *Gate) Answer(query []byte) []byte { return g.dns.Answer(query) }

// Datagram notes one that will not leave. The caller answers it.
func (g *Gate) Datagram(to netip.AddrPort) {
	name, _ := g.table.Name(to.Addr())
	g.refused(Refused{
		Refusal: rule.Refusal{Rule: rule.RuleProtocol, Reason: "UDP does not leave a sandbox, TCP does"},
		Stage:   StageDatagram, Name: string(name), Addr: to.Addr(), Port: to.Port(),
	})
}

// begin judges a new connection and makes its flow. With a refusal the flow is
// only for the record and is not counted; both are nil when the gate is closed.
func (g *Gate) begin(to netip.AddrPort) (*flow, *rule.Refusal) {
	f := &flow{gate: g, to: to, gone: make(chan struct{}), rec: Flow{ID: api.NewID("fl-"), Port: to.Port(), Started: time.Now()}}
	f.ctx, f.cancel = context.WithCancelCause(g.ctx)
	f.rec.Name, f.named = g.table.Name(to.Addr())
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		f.cancel(errClosed)
		return nil, nil
	}
	ref, budget := f.verdict(g.rules.Load()).Refusal(), g.budget.Load()
	switch {
	case ref != nil:
	case len(g.flows) >= g.limits.Flows:
		ref = &rule.Refusal{Rule: rule.RuleBudget, Reason: "this sandbox has as many connections at once as it may"}
	case over(&g.connections, budget.Connections):
		ref = &rule.Refusal{Rule: rule.RuleBudget, Reason: "this sandbox has made as many connections as it may"}
	case over(&g.bytesOut, budget.BytesOut):
		ref = usedUp("sent")
	case over(&g.bytesIn, budget.BytesIn):
		ref = usedUp("received")
	default:
		g.connections.Add(1)
		g.flows[f] = struct{}{}
	}
	g.wg.Add(1)
	return f, ref
}

// end takes the flow out again.
func (g *Gate) end(f *flow) {
	f.cancel(nil)
	g.mu.Lock()
	delete(g.flows, f)
	g.mu.Unlock()
	close(f.gone)
	g.wg.Done()
}

func over(used *atomic.Int64, limit int64) bool { return limit > 0 && used.Load() >= limit }

func usedUp(verb string) *rule.Refusal {
	return &rule.Refusal{Rule: rule.RuleBudget, Reason: "this sandbox has " + verb + " as many bytes as it may"}
}

package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Opening is a connection that a sandbox asks for and does not have yet. Either
// method is called exactly once.
type Opening interface {
	// Accept gives the sandbox its connection.
	Accept() (Conn, error)
	// Refuse answers with a reset.
	Refuse()
}

// Conn is our end of a connection of a sandbox. Reset may be called at any time,
// by any goroutine; it ends what the others are doing.
type Conn interface {
	net.Conn
	CloseWrite() error
	// Reset ends the connection so that the sandbox sees it was not a proper end.
	Reset()
}

// flow is one connection on its way.
type flow struct {
	gate   *Gate
	to     netip.AddrPort // as the sandbox sees it
	named  bool
	ctx    context.Context
	cancel context.CancelCauseFunc

	rec   Flow
	grant rule.Grant // with settled, under gate.mu
	class string     // of rec.Addr
	// gone is closed when nothing of it is left.
	gone chan struct{}
	// settled is true once the real address and the grant are known.
	settled bool

	out, in atomic.Int64
	moved   atomic.Int64 // when a byte last moved, in Unix nanoseconds
}

func (f *flow) verdict(s *rule.Set) rule.Verdict {
	if f.named {
		return s.Flow(f.rec.Name, f.to.Port())
	}
	return s.Literal(f.to)
}

// judgeAgain says why the flow may not go on under other rules. It is called
// under gate.mu. A flow that is not settled is judged when it is.
func (f *flow) judgeAgain(s *rule.Set) *rule.Refusal {
	v := f.verdict(s)
	if !f.settled {
		return v.Refusal()
	}
	grant, ref := v.At(f.rec.Addr, f.class)
	if ref == nil && grant.Mode < f.grant.Mode {
		ref = &rule.Refusal{Rule: rule.RuleAgree, Reason: "the flow was allowed as opaque, and is now only as HTTP or TLS"}
	}
	return ref
}

// settle decides which grant the flow goes by, now that its real address is
// known, under the rules of this moment.
func (f *flow) settle() *rule.Refusal {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	grant, ref := f.verdict(f.gate.rules.Load()).At(f.rec.Addr, f.class)
	if ref == nil {
		f.grant, f.settled = grant, true
		f.rec.Rule = grant.Rule
	}
	return ref
}

// Connect carries a connection from its first packet to its end. It returns when
// nothing of it is left.
func (g *Gate) Connect(to netip.AddrPort, o Opening) {
	f, ref := g.begin(to)
	if f != nil && ref != nil && f.asked(ref) {
		g.end(f)
		f, ref = g.begin(to)
	}
	if f == nil {
		o.Refuse()
		return
	}
	defer g.end(f)
	if ref != nil {
		f.refuse(StageConnect, ref, o)
		return
	}
	server, err := f.dial()
	if err == nil {
		defer server.Close()
		if ref := f.settle(); ref != nil {
			err = ref
		}
	}
	if ref, ok := errors.AsType[*rule.Refusal](err); ok {
		f.refuse(StageConnect, ref, o)
		return
	}
	if err != nil {
		o.Refuse()
		f.ended("could not connect: " + err.Error())
		return
	}
	client, err := o.Accept()
	if err != nil {
		f.ended("the sandbox left before it was connected")
		return
	}
	defer client.Close()
	// From here on, a cancel of the flow ends both connections and thereby all
	// that is waiting for them.
	aborted := make(chan struct{})
	stop := context.AfterFunc(f.ctx, func() {
		defer close(aborted)
		client.Reset()
		abort(server)
	})
	watch := f.watch()
	f.carry(client, server)
	if !stop() {
		<-aborted
	}
	f.cancel(nil)
	watch.Stop()
}

// dial opens the real connection and notes where it goes.
func (f *flow) dial() (net.Conn, error) {
	var err error
	up := f.gate.upstream.Load()
	verdict := f.verdict(f.gate.rules.Load())
	if !f.named {
		to, err := up.Address(f.ctx, f.to)
		f.rec.Addr, f.rec.ResolvedBy = to.Addr.Addr(), to.By
		return to.Conn, f.cause(err)
	}
	to, err := up.Host(f.ctx, f.rec.Name, f.to.Port(), func(a netip.Addr) *rule.Refusal {
		_, ref := verdict.At(a, f.gate.class(a))
		return ref
	})
	f.rec.Addr, f.rec.ResolvedBy = to.Addr.Addr(), to.By
	if f.rec.Addr.IsValid() {
		f.class = f.gate.class(f.rec.Addr)
	}
	return to.Conn, f.cause(err)
}

// cause is why the flow was cancelled, where err is only what came of that.
func (f *flow) cause(err error) error {
	if err != nil && f.ctx.Err() != nil {
		return context.Cause(f.ctx)
	}
	return err
}

// carry moves the bytes, and tells the observer of it.
func (f *flow) carry(client Conn, server net.Conn) {
	var err error
	// One that is changed while this flow begins ends it.
	opener := f.gate.intercept.Load()
	if !f.opens(opener) {
		opener = nil
	}
	if f.grant.Mode == rule.Opaque && opener == nil {
		f.opened(Opaque)
		err = f.relay(client, client, server)
	} else {
		err = f.agree(opener, client, server)
	}
	err = f.cause(err)
	if err != nil {
		client.Reset()
		abort(server)
	}
	if f.rec.Protocol == "" {
		return // never opened; a refusal was told
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	f.ended(reason)
}

// agree looks at the first bytes, and lets the flow go on if they name its host.
// Opener, where it is not nil, sees what is inside its TLS.
func (f *flow) agree(opener *intercept.Interceptor, client Conn, server net.Conn) error {
	if err := client.SetReadDeadline(time.Now().Add(f.gate.limits.First)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(client, bufSize)
	kind, err := firstKind(r)
	var hello []byte
	if kind == inspect.TLS {
		hello, err = f.hello(r)
	}
	if err == nil {
		err = client.SetReadDeadline(time.Time{})
	}
	switch {
	case err != nil:
	case kind == inspect.HTTP:
		return f.http(client, r, server)
	case kind == inspect.TLS && opener != nil:
		return f.open(opener, client, hello, r, server)
	case kind == inspect.TLS:
		f.opened(TLS)
		if _, err = f.outward(server).Write(hello); err == nil {
			return f.relay(client, inspect.NewRetry(r, f.again), server)
		}
	default:
		err = f.disagrees("its first bytes are neither HTTP nor TLS")
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		err = f.disagrees("it said nothing by which its host could be known")
	}
	if ref, ok := errors.AsType[*rule.Refusal](err); ok && f.ctx.Err() == nil {
		f.tell(StageFirst, ref)
	}
	return err
}

// firstKind waits until the first bytes say what they are.
func firstKind(r *bufio.Reader) (inspect.Kind, error) {
	for n := 1; ; n++ {
		b, err := r.Peek(max(n, r.Buffered()))
		if kind := inspect.KindOf(b); kind != inspect.Short || err != nil {
			if kind == inspect.Short && errors.Is(err, io.EOF) && len(b) > 0 {
				return inspect.Other, nil
			}
			return kind, err
		}
		n = len(b)
	}
}

// hello reads the first message of a TLS client and compares its name. What it
// returns are all bytes that were read.
func (f *flow) hello(r *bufio.Reader) ([]byte, error) {
	var b []byte
	for {
		h, err := inspect.ParseHello(b)
		if short, ok := errors.AsType[*inspect.ShortError](err); ok {
			from := len(b)
			b = append(b, make([]byte, short.Need-from)...)
			if _, err := io.ReadFull(r, b[from:]); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, f.disagrees("its TLS hello is malformed")
		}
		if ref := f.greets(h); ref != nil {
			return nil, ref
		}
		return b, nil
	}
}

// greets compares the name in a hello.
func (f *flow) greets(h inspect.ClientHello) *rule.Refusal {
	if h.ServerName == "" {
		return f.disagrees("its TLS hello names no host")
	}
	if n, err := rule.ParseName(h.ServerName); err != nil || n != f.rec.Name {
		return f.disagrees("its TLS hello names another host")
	}
	return nil
}

// again is told of the hellos after the first, on a flow that is let through.
func (f *flow) again(h inspect.ClientHello) error {
	ref := f.greets(h)
	if ref == nil {
		return nil
	}
	f.tell(StageFirst, ref)
	return ref
}

func (f *flow) disagrees(why string) *rule.Refusal {
	return &rule.Refusal{
		Rule: rule.RuleAgree, Reason: "a connection to " + string(f.rec.Name) + " is refused: " + why,
		Allow: rule.Rule{Host: string(f.rec.Name), Port: f.to.Port()}.String(),
	}
}

// tell tells the observer of a refusal on this flow.
func (f *flow) tell(stage Stage, ref *rule.Refusal) {
	name := string(f.rec.Name)
	f.gate.refused(Refused{Refusal: *ref, Stage: stage, Name: name, Addr: f.to.Addr(), Port: f.to.Port()})
}

// opened notes that the flow is let through.
func (f *flow) opened(p Protocol) {
	f.rec.Protocol = p
	if f.gate.observer != nil {
		f.gate.observer.Opened(f.rec)
	}
}

// ended notes the end of a flow that was allowed.
func (f *flow) ended(reason string) {
	f.rec.Ended, f.rec.Reason = time.Now(), reason
	f.rec.BytesOut, f.rec.BytesIn = f.out.Load(), f.in.Load()
	if f.gate.observer != nil {
		f.gate.observer.Closed(f.rec)
	}
}

var errIdle = errors.New("nothing moved for too long")

// watch cancels the flow when nothing moves. The caller stops it, after it
// cancelled the flow.
func (f *flow) watch() *time.Timer {
	f.moved.Store(time.Now().UnixNano())
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(f.gate.limits.Idle, func() {
		<-ready
		left := f.gate.limits.Idle - time.Since(time.Unix(0, f.moved.Load()))
		if left <= 0 {
			f.cancel(errIdle)
			return
		}
		// The flow is cancelled before the timer is stopped, so one of the two sees
		// that it is over.
		if t.Reset(left); f.ctx.Err() != nil {
			t.Stop()
		}
	})
	close(ready)
	return t
}

// abort ends a real connection with a reset where that can be said.
func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // an error is one of a connection that is gone
	}
	c.Close()
}

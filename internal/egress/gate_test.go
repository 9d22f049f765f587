package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// guest is a connection of a sandbox over loopback, in place of a link.
type guest struct {
	near, far *net.TCPConn
	accepted  chan struct{}
	refused   chan struct{}
}

func newGuest(t testing.TB) *guest {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	return &guest{near, far, make(chan struct{}), make(chan struct{})}
}

// Accept implements egress.Opening.
func (g *guest) Accept() (egress.Conn, error) {
	close(g.accepted)
	return resettable{g.near}, nil
}

// Refuse implements egress.Opening.
func (g *guest) Refuse() {
	close(g.refused)
	resettable{g.near}.Reset()
}

type resettable struct{ *net.TCPConn }

// Reset implements egress.Conn.
func (r resettable) Reset() {
	r.SetLinger(0)
	r.Close()
}

// pipe is a connection of a sandbox in memory. It cannot be closed in one direction.
type pipe struct{ net.Conn }

// Accept implements egress.Opening.
func (p pipe) Accept() (egress.Conn, error) { return p, nil }

// Refuse implements egress.Opening.
func (p pipe) Refuse() { p.Close() }

// Reset implements egress.Conn.
func (p pipe) Reset() { p.Close() }

// CloseWrite implements egress.Conn.
func (p pipe) CloseWrite() error { return errors.ErrUnsupported }

// echo is an upstream where every name is a server that sends back what it gets.
type echo struct {
	wg sync.WaitGroup
	// before, where set, is called with each dial.
	before func(context.Context) error
	dialed atomic.Int64
	// piped is that its connections are in memory.
	piped bool
}

func (e *echo) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
}

func (e *echo) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	e.dialed.Add(1)
	if e.before != nil {
		if err := e.before(ctx); err != nil {
			return nil, err
		}
	}
	if e.piped {
		near, far := net.Pipe()
		e.wg.Go(func() {
			defer far.Close()
			io.Copy(far, far)
		})
		return near, nil
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	e.wg.Go(func() {
		defer far.Close()
		io.Copy(far, far)
		far.CloseWrite()
	})
	return near, nil
}

// counter is an observer that counts.
type counter struct{ opened, closed, refused, told atomic.Int64 }

func (c *counter) Opened(egress.Flow) { c.opened.Add(1) }
func (c *counter) Closed(egress.Flow) { c.closed.Add(1) }
func (c *counter) Refused(r egress.Refused) {
	c.refused.Add(1)
	c.told.Add(1 + r.Suppressed)
}

func compile(t testing.TB, texts ...string) *rule.Set {
	t.Helper()
	var rules []rule.Rule
	for _, s := range texts {
		r, err := rule.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	set, err := rule.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// gate is a gate to e, and the address that stands for a name.
func gate(t testing.TB, e *echo, o egress.Options, rules ...string) (*egress.Gate, func(name rule.Name, port uint16) netip.AddrPort) {
	t.Helper()
	table, err := resolver.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Table, o.Rules = table, compile(t, rules...)
	if o.Own == nil {
		o.Own = func(netip.Addr) bool { return false }
	}
	o.Upstream = &upstream.Dialer{Resolver: e, Dialer: e}
	g := egress.New(t.Context(), o)
	t.Cleanup(func() { g.Close(); e.wg.Wait() })
	return g, func(name rule.Name, port uint16) netip.AddrPort {
		a, err := table.Address(name)
		if err != nil {
			t.Fatal(err)
		}
		return netip.AddrPortFrom(a, port)
	}
}

// TestFlowsUnderChangingRules: while rules come and go, a flow that is let
// through carries its bytes, and each is told closed as often as opened.
func TestFlowsUnderChangingRules(t *testing.T) {
	e, c := &echo{}, &counter{}
	g, at := gate(t, e, egress.Options{Observer: c}, "a.org:7", "b.org:7")
	to := map[bool]netip.AddrPort{true: at("a.org", 7), false: at("b.org", 7)}
	stop := make(chan struct{})
	var rules, flows sync.WaitGroup
	rules.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if i%2 == 0 {
				g.SetRules(compile(t, "a.org:7"))
			} else {
				g.SetRules(compile(t, "a.org:7", "b.org:7"))
			}
		}
	})
	for i := range 200 {
		stays := i%2 == 0
		o := newGuest(t)
		flows.Go(func() { g.Connect(to[stays], o) })
		flows.Go(func() {
			defer o.far.Close()
			o.far.SetDeadline(time.Now().Add(time.Minute))
			text := fmt.Sprintf("hello %d", i)
			io.WriteString(o.far, text)
			o.far.CloseWrite()
			b, err := io.ReadAll(o.far)
			if stays && (err != nil || string(b) != text) {
				t.Errorf("%q came back as %q, %v", text, b, err)
			}
			if len(b) > 0 && !strings.HasPrefix(text, string(b)) && !strings.HasPrefix(string(b), "HTTP") {
				t.Errorf("%q came back as %q", text, b)
			}
		})
		if i%20 == 19 {
			flows.Wait()
		}
	}
	close(stop)
	rules.Wait()
	if c.opened.Load() != c.closed.Load() || c.opened.Load() < 100 || g.Flows() != 0 {
		t.Errorf("%d opened, %d closed, %d are left", c.opened.Load(), c.closed.Load(), g.Flows())
	}
}

func TestCloseEndsEverything(t *testing.T) {
	dialing := make(chan struct{})
	e := &echo{}
	g, at := gate(t, e, egress.Options{}, "a.org:7", "slow.org:8")
	open := newGuest(t)
	defer open.far.Close()
	var wg sync.WaitGroup
	wg.Go(func() { g.Connect(at("a.org", 7), open) })
	<-open.accepted
	io.WriteString(open.far, "x")
	io.ReadFull(open.far, make([]byte, 1))
	e.before = func(ctx context.Context) error {
		close(dialing)
		<-ctx.Done()
		return ctx.Err()
	}
	slow := newGuest(t)
	defer slow.far.Close()
	wg.Go(func() { g.Connect(at("slow.org", 8), slow) })
	<-dialing
	g.Close()
	wg.Wait()
	<-slow.refused
	if _, err := open.far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the flow ended with %v, not by a reset", err)
	}
	late := newGuest(t)
	defer late.far.Close()
	g.Connect(at("a.org", 7), late)
	<-late.refused
}

// TestIdleFlowEnds: what moves is not idle, and from its last byte a flow has exactly the
// time that it may be.
func TestIdleFlowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &echo{piped: true}
		g, at := gate(t, e, egress.Options{Limits: egress.Limits{Idle: time.Minute}}, "a.org:7")
		near, far := net.Pipe()
		defer far.Close()
		done := make(chan struct{})
		go func() { g.Connect(at("a.org", 7), pipe{near}); close(done) }()
		var last time.Time
		for range 10 {
			io.WriteString(far, "x")
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			last = time.Now()
			time.Sleep(50 * time.Second)
		}
		<-done
		if idle := time.Since(last); idle != time.Minute {
			t.Errorf("the flow ended after %s", idle)
		}
	})
}

// TestBudgetIsExact: many flows at once do not get one byte more than one.
func TestBudgetIsExact(t *testing.T) {
	e, c := &echo{}, &counter{}
	const limit = 100_000
	g, at := gate(t, e, egress.Options{Observer: c, Limits: egress.Limits{BytesOut: limit}, Used: egress.Usage{BytesOut: 40_000}}, "a.org:7")
	to := at("a.org", 7)
	var wg sync.WaitGroup
	for range 8 {
		o := newGuest(t)
		wg.Go(func() { g.Connect(to, o) })
		wg.Go(func() {
			defer o.far.Close()
			o.far.SetDeadline(time.Now().Add(time.Minute))
			wg.Go(func() { io.Copy(io.Discard, o.far) })
			for range 50 {
				if _, err := o.far.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
			o.far.CloseWrite()
		})
	}
	wg.Wait()
	if u := g.Usage(); u.BytesOut != limit || u.Connections > 8 {
		t.Errorf("usage %+v", u)
	}
	if c.refused.Load() == 0 {
		t.Error("nobody was told")
	}
}

// TestFloodOfRefusals: an observer is told of some, and in the end how many.
func TestFloodOfRefusals(t *testing.T) {
	e, c := &echo{}, &counter{}
	g, _ := gate(t, e, egress.Options{Observer: c})
	to := netip.MustParseAddrPort("8.8.8.8:53")
	for range 5000 {
		g.Datagram(to)
	}
	if n := c.refused.Load(); n < 50 || n > 1000 {
		t.Errorf("told %d times", n)
	}
	sent := int64(5000)
	for deadline := time.Now().Add(time.Minute); c.told.Load() < 5000 || sent < 5100; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("only %d of %d are accounted for", c.told.Load(), sent)
		}
		g.Datagram(to)
		sent++
	}
	if n := c.told.Load(); n > sent {
		t.Errorf("%d of %d are accounted for", n, sent)
	}
	if e.dialed.Load() != 0 {
		t.Error("something was dialed")
	}
}

// TestServerThatCannotBeReached is a reset and a record, not a refusal.
func TestServerThatCannotBeReached(t *testing.T) {
	e, c := &echo{before: func(context.Context) error { return errors.New("no route") }}, &counter{}
	g, at := gate(t, e, egress.Options{Observer: c}, "a.org")
	o := newGuest(t)
	defer o.far.Close()
	g.Connect(at("a.org", 443), o)
	<-o.refused
	if c.refused.Load() != 0 || c.closed.Load() != 1 || c.opened.Load() != 0 {
		t.Errorf("%d refused, %d closed, %d opened", c.refused.Load(), c.closed.Load(), c.opened.Load())
	}
}

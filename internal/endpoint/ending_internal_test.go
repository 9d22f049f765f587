package endpoint

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// A pulse that has ended says nothing more, also where its timer had gone off before, and
// what is written after that does not start it again.
func TestPulseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		p := &pulse{every: time.Minute, w: rec}
		p.timer = time.AfterFunc(p.every, p.beat)
		if _, err := p.write([]byte("data: 1\n\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		const said = "data: 1\n\n" + keepAlive
		if got := rec.Body.String(); got != said {
			t.Errorf("before the end: %q", got)
		}
		p.end()
		p.beat() // it was waiting for the lock
		if _, err := p.write([]byte("\n\n")); err != nil {
			t.Fatal(err)
		}
		if p.timer.Stop() {
			t.Error("the timer runs after the end")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := rec.Body.String(); got != said+"\n\n" {
			t.Errorf("after the end: %.100q", got)
		}
	})
}

// counting is a context that counts what waits for its end.
type counting struct {
	context.Context
	waiting atomic.Int64
}

func (c *counting) AfterFunc(f func()) (stop func() bool) {
	c.waiting.Add(1)
	inner := context.AfterFunc(c.Context, f)
	return func() bool {
		c.waiting.Add(-1)
		return inner()
	}
}

// Value hides what is below, to which a child would go past this.
func (c *counting) Value(any) any { return nil }

type nobody struct{}

func (nobody) Exchanged(api.Exchange)            {}
func (nobody) Changed(api.EndpointState, string) {}

// A connection that has ended, or was refused, leaves nothing with its endpoint, which may
// live for months.
func TestRawConnectionsLeaveNothing(t *testing.T) {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	go func() {
		for {
			c, err := far.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spec := api.Endpoint{Name: "raw", Listen: ln.Addr().String(), Target: "tcp://" + far.Addr().String(), Limits: api.EndpointLimits{Connections: 2}}
	e, err := New(t.Context(), Options{
		Spec: spec, Ranges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Tenant: "t", Sandbox: "sb-1", Observer: nobody{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	count := &counting{Context: e.ctx}
	e.ctx = count
	served := make(chan struct{})
	go func() {
		defer close(served)
		e.Serve(ln)
	}()
	defer func() {
		ln.Close()
		e.Close(t.Context(), 0)
		<-served
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	echo := func(c net.Conn) {
		t.Helper()
		b := make([]byte, 1)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
	}
	one, two := dial(), dial()
	echo(one)
	echo(two)
	const refused = 5
	for range refused {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			continue // it was reset at once
		}
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a connection more than there may be ended well")
		}
		c.Close()
	}
	for _, c := range []net.Conn{one, two} {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("the rest: %q, %v", rest, err)
		}
		c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e.Status().Counters.Errors[codeBusy] < refused || e.Status().Counters.Active > 0 || count.waiting.Load() > 0 {
		select {
		case <-ctx.Done():
			t.Fatalf("%d connections are left with the endpoint, %d of them active", count.waiting.Load(), e.Status().Counters.Active)
		case <-time.After(time.Millisecond):
		}
	}
}

// Of what the endpoint refuses it closes the connection where the rest of the request is not
// read: that is not to be taken for another request. Other refusals leave it open.
func TestRefusalsClose(t *testing.T) {
	x := &exchange{e: &Endpoint{}, up: &upstream{}}
	for code, closes := range map[string]bool{
		codeMalformed: true, codeBody: true, codeCapability: true, codeUnreadable: true, codeDraining: true,
		codeMethod: false, codePath: false, codeOrigin: false, codeMisdirected: false, codeBusy: false, codeRate: false, codeSecret: false,
	} {
		rec := httptest.NewRecorder()
		x.w = &answering{ResponseWriter: rec, x: x}
		x.refuse(code)
		if got := rec.Header().Get("Connection"); (got == "close") != closes {
			t.Errorf("%s: Connection: %q, want close: %v", code, got, closes)
		}
		if !strings.Contains(rec.Body.String(), code) {
			t.Errorf("%s: %q", code, rec.Body)
		}
	}
}

// What a request's body may take of memory is what it has, and no more where that is just
// full.
func TestBufferedHoldsWhatItHas(t *testing.T) {
	for _, size := range []int{0, 1, 32 << 10, 64 << 10} {
		x := &exchange{e: &Endpoint{o: Options{Share: &Share{}}}}
		r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", size)))
		body, err := x.buffered(r)
		if err != nil || len(body) != size || x.held.Load() != int64(size) {
			t.Errorf("%d bytes: %d read, %d held, %v", size, len(body), x.held.Load(), err)
		}
	}
}

// The error of a target that cannot be reached says why.
func TestOpenSaysWhy(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	e, err := New(t.Context(), Options{
		Spec:   api.Endpoint{Name: "e", Listen: "127.0.0.1:1", Target: "http://" + target},
		Ranges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Tenant: "t", Sandbox: "sb-1", Observer: nobody{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(t.Context(), 0)
	if conn, err := e.upstream.Load().open(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, %v", conn, err)
	}
}

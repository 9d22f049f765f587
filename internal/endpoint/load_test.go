package endpoint_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
)

// gate is a resolver that answers once, and then no more until it is opened.
type gate struct {
	asked atomic.Int64
	open  chan struct{}
}

func (g *gate) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	if g.asked.Add(1) > 1 {
		select {
		case <-g.open:
		case <-ctx.Done():
		case <-time.After(3 * time.Second): // for when the only connection was lost
		}
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// TestSlowConnectsAreFew: requests that are served by a connection that came back leave
// no others behind: at no time are there more than there are requests.
func TestSlowConnectsAreFew(t *testing.T) {
	// Under load net/http gives connections up that it could keep, and opens others.
	var closed atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	g := &gate{open: make(chan struct{})}
	in := open(t, api.Endpoint{Target: "http://slow.test" + srv.URL[strings.LastIndex(srv.URL, ":"):], Limits: api.EndpointLimits{ConnectMS: 60_000}},
		func(o *endpoint.Options) { o.Resolver = g })
	const workers, each = 8, 25
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	work := func(n int) {
		for range n {
			resp, err := client.Post(in.base+"/", "text/plain", strings.NewReader("x"))
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	for range workers {
		wg.Go(func() { work(each) })
	}
	wg.Wait() // all over the one connection that there is
	until(t, func() bool { return g.asked.Load()-closed.Load() <= workers })
	close(g.open)
	for range workers {
		wg.Go(func() { work(each) })
	}
	wg.Wait()
	until(t, func() bool { return in.Status().Counters.Upstream-closed.Load() <= workers })
}

// TestHungRequestsDelayNobody: requests that are never answered leave the others
// alone, to the last place there is; a client without a place is told when to retry.
func TestHungRequestsDelayNobody(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	ctx, release := context.WithCancel(t.Context())
	defer release()
	var wg sync.WaitGroup
	hang := func(n int) {
		for range n {
			wg.Go(func() {
				for ctx.Err() == nil { // also where another got the last place
					req, _ := http.NewRequestWithContext(ctx, "GET", in.base+"/hang", nil)
					if resp, err := http.DefaultClient.Do(req); err == nil {
						resp.Body.Close()
					}
				}
			})
		}
	}
	get := func() string {
		resp, err := http.Get(in.base + "/")
		if err != nil {
			return err.Error()
		}
		resp.Body.Close()
		return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error") + " " + resp.Header.Get("Retry-After"))
	}
	hang(63)
	until(t, func() bool { return in.Status().Counters.Active == 63 })
	for range 20 {
		if got := get(); got != "200" {
			t.Fatalf("beside 63 that hang: %s", got)
		}
	}
	hang(65) // one goes on, 64 wait
	until(t, func() bool { return in.Status().Counters.Active == 128 })
	// Counted is not yet in the queue: who comes a moment too early waits there itself.
	until(t, func() bool {
		impatient := http.Client{Timeout: 2 * time.Second}
		resp, err := impatient.Get(in.base + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 429 && resp.Header.Get("X-Bridge-Error") == "concurrency_limit" && resp.Header.Get("Retry-After") == "1"
	})
	other := open(t, api.Endpoint{Target: srv.URL}, nil)
	if resp, err := http.Get(other.base); err != nil || resp.StatusCode != 200 {
		t.Errorf("another endpoint: %v, %v", resp, err)
	}
	release()
	wg.Wait()
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if got := get(); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestSlowHeadIsCut: who takes too long over the head of a request is let go, and its
// place is free again.
func TestSlowHeadIsCut(t *testing.T) {
	if testing.Short() {
		t.Skip("needs ten seconds")
	}
	t.Parallel()
	srv := target(t, func(w http.ResponseWriter, r *http.Request) { t.Error("it reached the target") })
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{Connections: 1}}, nil)
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { // a byte a second, for as long as the client reads
		for i := 0; ; i++ {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nX-A: "[i%20:][:1]); err != nil || time.Since(begun) > time.Minute {
				return
			}
			<-time.After(time.Second)
		}
	})
	c.SetReadDeadline(begun.Add(time.Minute))
	io.Copy(io.Discard, c)
	if d := time.Since(begun); d < 9*time.Second || d > 50*time.Second {
		t.Errorf("cut after %s", d)
	}
	until(t, func() bool { return in.Status().Counters.Connections == 0 })
	c.Close()
	wg.Wait()
}

// TestRates: what comes too often is refused with the time to wait, and what is too
// much takes its time and arrives whole.
func TestRates(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, strings.Repeat("x", int(n)))
	})
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{RequestsPerSecond: 0.01}}, nil)
	for _, want := range []string{"200  ", "429 rate_limit 100"} {
		resp, err := http.Get(in.base)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error") + " " + resp.Header.Get("Retry-After")
		if got != want && got != "429 rate_limit 99" {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if x := in.last(t); x.Outcome != "denied" || x.Code != "rate_limit" {
		t.Errorf("%+v", x)
	}

	// 16 KiB at once, and 16 KiB each second; silence is not what waits for that.
	slow := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{BytesPerSecond: 16 << 10, IdleMS: 3000}}, nil)
	begun := time.Now()
	resp, err := http.Post(slow.base, "text/plain", strings.NewReader(strings.Repeat("y", 16<<10)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if d := time.Since(begun); len(body) != 16<<10 || err != nil || d < 900*time.Millisecond {
		t.Errorf("%d bytes, %v, after %s", len(body), err, d)
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	raw := open(t, api.Endpoint{Target: "tcp://" + ln.Addr().String(), Limits: api.EndpointLimits{RequestsPerSecond: 0.01}}, nil)
	for i := range 2 {
		c, err := net.Dial("tcp", raw.addr)
		if err != nil && i > 0 {
			break // it was cut before it was there
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			until(t, func() bool { return raw.Status().Counters.Active == 1 })
			continue
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a raw connection that comes too early is taken")
		}
	}
	until(t, func() bool { return raw.Status().Counters.Errors["rate_limit"] == 1 })
}

// TestShareOfASandbox: its endpoints have a number of connections together.
func TestShareOfASandbox(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {})
	share := &endpoint.Share{}
	limits := api.EndpointLimits{Connections: 512}
	with := func(o *endpoint.Options) { o.Share = share }
	one, two := open(t, api.Endpoint{Target: srv.URL, Limits: limits}, with), open(t, api.Endpoint{Target: srv.URL, Limits: limits}, with)
	var held []net.Conn
	for i := range 512 {
		c, err := net.Dial("tcp", []string{one.addr, two.addr}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	until(t, func() bool { return one.Status().Counters.Connections+two.Status().Counters.Connections == 512 })
	if c, err := net.Dial("tcp", one.addr); err == nil { // or it was cut before it was there
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("one more than the sandbox has is taken")
		}
	}
	until(t, func() bool { return one.Status().Counters.Errors["concurrency_limit"] == 1 })
	for _, c := range held {
		c.Close()
	}
	until(t, func() bool { return one.Status().Counters.Connections+two.Status().Counters.Connections == 0 })
	if got := one.say(t, "GET / HTTP/1.1\r\nHost: "+one.addr+"\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("afterwards: %.80q", got)
	}
}

// TestSocketsOfTheProcess: what endpoints have open to their targets is bounded for all
// of them together. A client without one is told to retry, and a free one is used.
func TestSocketsOfTheProcess(t *testing.T) {
	hold := make(chan struct{})
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			<-hold
		}
	})
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	sockets := endpoint.NewSockets(2)
	with := func(o *endpoint.Options) { o.Sockets = sockets }
	one, two := open(t, api.Endpoint{Target: srv.URL}, with), open(t, api.Endpoint{Target: srv.URL}, with)
	raw := open(t, api.Endpoint{Target: "tcp://" + echo.Addr().String()}, with)
	held, err := http.Get("http://" + one.addr + "/hold")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Body.Close()
	c, err := net.Dial("tcp", raw.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, func() bool { return raw.Status().Counters.Upstream == 1 })
	ask := "GET / HTTP/1.1\r\nHost: " + two.addr + "\r\nConnection: close\r\n\r\n"
	if got := two.say(t, ask); !strings.HasPrefix(got, "HTTP/1.1 429") || !strings.Contains(got, "Retry-After: ") {
		t.Errorf("with none left: %.120q", got)
	}
	// Both ends of a raw connection are closed, and the one of a request goes back.
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	until(t, func() bool { return strings.HasPrefix(two.say(t, ask), "HTTP/1.1 200") })
	close(hold)
}

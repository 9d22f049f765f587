package endpoint_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
)

// closedPort is an address of this machine at which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// status asks once and returns the status with the endpoint's own error.
func (in *inside) status(ctx context.Context, t *testing.T, path, body string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", in.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error"))
}

// TestFailedDialsKeepNothing: a connection to a target that does not come about keeps
// none of the places for connections to targets, nor for active requests.
func TestFailedDialsKeepNothing(t *testing.T) {
	srv := target(t, func(http.ResponseWriter, *http.Request) {})
	sockets := endpoint.NewSockets(1)
	one := api.EndpointLimits{Active: 1}
	with := func(o *endpoint.Options) {
		o.Sockets, o.Resolver = sockets, &zone{addrs: map[string]string{"private.test": "10.0.0.1"}}
	}
	for _, c := range []struct{ target, want string }{
		{"http://" + closedPort(t), "502 target_unreachable"},
		{"http://nosuch.test", "502 target_unreachable"},
		{"http://private.test", "502 target_denied"},
		{"unix://" + t.TempDir() + "/none", "502 target_unreachable"},
	} {
		in := open(t, api.Endpoint{Target: c.target, Limits: one}, with)
		for range 3 {
			if got := in.status(t.Context(), t, "/", ""); got != c.want {
				t.Fatalf("%s: %s, want %s", c.target, got, c.want)
			}
		}
	}
	raw := open(t, api.Endpoint{Target: "tcp://" + closedPort(t)}, with)
	for i := range int64(3) {
		if c, err := net.Dial("tcp", raw.addr); err == nil {
			defer c.Close()
		}
		until(t, func() bool { return raw.Status().Counters.Errors["target_unreachable"] == i+1 })
	}
	if got := open(t, api.Endpoint{Target: srv.URL, Limits: one}, with).status(t.Context(), t, "/", ""); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestEndedConnectionsKeepNothing: a connection to a target that has ended, whichever
// side ended it, leaves its place to another.
func TestEndedConnectionsKeepNothing(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			io.Copy(c, c)
			c.Close()
		}
	}()
	sockets := endpoint.NewSockets(1)
	with := func(o *endpoint.Options) { o.Sockets = sockets }
	in := open(t, api.Endpoint{Target: srv.URL}, with)
	raw := open(t, api.Endpoint{Target: "tcp://" + echo.Addr().String()}, with)
	for range 3 {
		until(t, func() bool { return in.status(t.Context(), t, "/", "") == "200" })
		until(t, raw.echoes)
	}
}

// echoes says whether a raw connection brings back what it is sent.
func (in *inside) echoes() bool {
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, "x") // the answer tells
	_ = c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(c)
	return err == nil && string(got) == "x"
}

// TestRefusedConnectionsKeepNothing: connections that are refused, or whose target
// cannot be reached, leave the sandbox as many as before.
func TestRefusedConnectionsKeepNothing(t *testing.T) {
	const most = 512 // of all endpoints of a sandbox
	srv := target(t, func(http.ResponseWriter, *http.Request) {})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		name, code string
		spec       api.Endpoint
		held       int
	}{
		{"requests, all taken", "concurrency_limit", api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{Connections: 1}}, 1},
		{"raw, all taken", "concurrency_limit", api.Endpoint{Target: "tcp://" + silent.Addr().String(), Limits: api.EndpointLimits{Connections: 1}}, 1},
		{"raw, too often", "rate_limit", api.Endpoint{Target: "tcp://" + silent.Addr().String(), Limits: api.EndpointLimits{RequestsPerSecond: 0.001}}, 1},
		{"raw, unreachable", "target_unreachable", api.Endpoint{Target: "tcp://" + closedPort(t)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			share := &endpoint.Share{}
			with := func(o *endpoint.Options) { o.Share = share }
			in := open(t, c.spec, with)
			dial := func() {
				if conn, err := net.Dial("tcp", in.addr); err == nil { // or it was reset at once
					t.Cleanup(func() { conn.Close() })
				}
			}
			for range c.held {
				dial()
			}
			until(t, func() bool { return in.Status().Counters.Connections == int64(c.held) })
			for i := range int64(most) {
				dial()
				until(t, func() bool { return in.Status().Counters.Errors[c.code] == i+1 })
			}
			until(t, func() bool { return in.Status().Counters.Connections == int64(c.held) })
			other := open(t, api.Endpoint{Target: srv.URL}, with)
			if got := other.status(t.Context(), t, "/", ""); got != "200" {
				t.Errorf("after %d refused ones, another endpoint: %s", most, got)
			}
		})
	}
}

// TestFullShareIsWholeAfterwards: a sandbox can open all of its connections
// again after others were refused at the limit.
func TestFullShareIsWholeAfterwards(t *testing.T) {
	const most = 512
	srv := target(t, func(http.ResponseWriter, *http.Request) {})
	share := &endpoint.Share{}
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{Connections: 2 * most}}, func(o *endpoint.Options) { o.Share = share })
	for round := range int64(2) {
		var held []net.Conn
		for range most {
			c, err := net.Dial("tcp", in.addr)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
		until(t, func() bool { return in.Status().Counters.Connections == most })
		if n := in.Status().Counters.Errors["concurrency_limit"]; n != 5*round {
			t.Errorf("round %d: %d were refused", round, n)
		}
		for range 5 {
			if c, err := net.Dial("tcp", in.addr); err == nil {
				held = append(held, c)
			}
		}
		until(t, func() bool { return in.Status().Counters.Errors["concurrency_limit"] >= 5*round+5 })
		for _, c := range held {
			c.Close()
		}
		until(t, func() bool { return in.Status().Counters.Connections == 0 })
	}
}

// TestRefusedForRateKeepNothing: requests that come too often do not make the next one
// wait longer.
func TestRefusedForRateKeepNothing(t *testing.T) {
	srv := target(t, func(http.ResponseWriter, *http.Request) {})
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{RequestsPerSecond: 0.01}}, nil)
	if got := in.status(t.Context(), t, "/", ""); got != "200" {
		t.Fatal(got)
	}
	for range 5 {
		resp, err := http.Get(in.base)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if s, _ := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != 429 || s < 1 || s > 100 {
			t.Errorf("%d, to come again in %d s", resp.StatusCode, s)
		}
	}
}

// TestWaitingRequestsLeaveTheirPlace: a client that gives up before its request goes on
// leaves its place among those that wait.
func TestWaitingRequestsLeaveTheirPlace(t *testing.T) {
	release := make(chan struct{})
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-release
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{Active: 1}}, nil)
	done := make(chan string, 2)
	go func() { done <- in.status(t.Context(), t, "/hang", "") }()
	until(t, func() bool { return in.Status().Counters.Active == 1 })
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan string, 1)
		go func() { gone <- in.status(ctx, t, "/", "") }()
		until(t, func() bool { return in.Status().Counters.Active == 2 })
		leave()
		<-gone
		until(t, func() bool { return in.Status().Counters.Active == 1 })
	}
	if n := in.Status().Counters.Errors["concurrency_limit"]; n != 0 {
		t.Errorf("%d were refused", n)
	}
	go func() { done <- in.status(t.Context(), t, "/", "") }()
	until(t, func() bool { return in.Status().Counters.Active == 2 })
	close(release)
	for range 2 {
		if got := <-done; got != "200" {
			t.Error(got)
		}
	}
}

// TestBodiesGiveMemoryBack: what the bodies of requests held is free when they are over,
// however they ended.
func TestBodiesGiveMemoryBack(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{BodyFilter: "strip"}}, nil)
	const size = 4<<20 + 4096 // ten are more than a sandbox has in memory at once
	for i := range 10 {
		body, want := `{"model":"m","input":"`+strings.Repeat("x", size)+`"}`, "200"
		if i%2 == 0 {
			body, want = body[:size], "400 body_unreadable"
		}
		if got := in.status(t.Context(), t, "/v1/responses", body); got != want {
			t.Fatalf("request %d: %s, want %s", i, got, want)
		}
	}
}

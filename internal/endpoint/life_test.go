package endpoint_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestFewConnections: many requests need few connections to the target.
func TestFewConnections(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 / 4 {
				resp, err := http.Post(in.base+"/", "text/plain", strings.NewReader("x"))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n > 8 {
		t.Errorf("%d connections", n)
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.exchanges) != 500 {
		t.Errorf("%d on record", len(in.exchanges))
	}
}

// TestClose: who has ended by itself within the grace is drained, the rest is cut.
func TestClose(t *testing.T) {
	begun := make(chan struct{}, 2)
	finish := make(chan struct{})
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		if r.URL.Path == "/soon" {
			<-finish
			return
		}
		<-r.Context().Done()
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	var wg sync.WaitGroup
	for path, want := range map[string]string{"/soon": "200 ", "/never": "503 draining"} {
		wg.Go(func() {
			resp, err := http.Get(in.base + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got := strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error"); got != want {
				t.Errorf("%s: %s", path, got)
			}
		})
	}
	<-begun
	<-begun
	done := make(chan api.EndpointRemoval)
	ctx, over := context.WithCancel(t.Context())
	defer over()
	go func() { done <- in.Close(ctx, time.Hour) }()
	until(t, func() bool { return in.State() == api.EndpointDraining })
	close(finish)
	until(t, func() bool { return in.Status().Counters.Active == 1 })
	over() // as the end of the grace
	if r := <-done; r.Drained != 1 || r.Cancelled != 1 {
		t.Errorf("%+v", r)
	}
	wg.Wait()
	if s := in.State(); s != api.EndpointClosed {
		t.Error(s)
	}

	in = open(t, api.Endpoint{Target: srv.URL}, nil)
	wg.Go(func() {
		if resp, err := http.Get(in.base + "/never"); err == nil {
			resp.Body.Close()
		}
	})
	<-begun
	if r := in.Close(t.Context(), time.Millisecond); r.Drained != 0 || r.Cancelled != 1 {
		t.Errorf("after a grace that nobody used: %+v", r)
	}
	wg.Wait()
}

// TestSwitch: what begins afterwards goes to the new target.
func TestSwitch(t *testing.T) {
	hold := make(chan struct{})
	reached := make(chan struct{})
	one := target(t, func(w http.ResponseWriter, r *http.Request) {
		close(reached)
		<-hold
		fmt.Fprint(w, "one")
	})
	two := target(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "two") })
	in := open(t, api.Endpoint{Target: one.URL}, nil)
	get := func() string {
		resp, err := http.Get(in.base)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	first := make(chan string)
	go func() { first <- get() }()
	<-reached
	spec := in.Status().Endpoint
	spec.Target = two.URL
	if err := in.Switch(spec, loopback()); err != nil {
		t.Fatal(err)
	}
	if got := get(); got != "two" {
		t.Error(got)
	}
	close(hold)
	if got := <-first; got != "one" {
		t.Error(got)
	}
}

// TestConditions: an endpoint reports that its target is unavailable, and that it
// is available again.
func TestConditions(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	in := open(t, api.Endpoint{Target: "http://" + addr}, nil)
	status := func() int {
		resp, err := http.Get(in.base)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(); got != 502 || in.State() != api.EndpointDegraded {
		t.Errorf("%d, %s", got, in.State())
	}
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Skip("needs the port once more: it was taken")
	}
	srv := &http.Server{}
	defer srv.Close()
	go srv.Serve(ln)
	if got := status(); got != 404 {
		t.Error(got)
	}
	until(t, func() bool { return in.State() == api.EndpointReady })
	in.mu.Lock()
	defer in.mu.Unlock()
	if want := []string{"ready", "degraded its target cannot be reached", "ready"}; !slices.Equal(in.states, want) {
		t.Errorf("%q", in.states)
	}
}

// TestTimes: slow heads, late answers and silence are cut, each with its own word.
func TestTimes(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			w.Write([]byte("begun"))
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{HeaderMS: 50}}, nil)
	resp, err := http.Get(in.base + "/late")
	if err != nil || resp.StatusCode != 504 || resp.Header.Get("X-Bridge-Error") != "header_timeout" {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	in = open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{IdleMS: 100}}, nil)
	// On a busy machine its time is over before the beginning has come through.
	if resp, err = http.Get(in.base + "/silent"); err == nil {
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("a silent stream ends well: %q", b)
		}
		resp.Body.Close()
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if x := in.last(t); x.Code != "idle_timeout" {
		t.Errorf("%+v", x)
	}
}

// TestRaw: bytes go through as they are, and each direction has its own end.
func TestRaw(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				slices.Reverse(b)
				c.Write(b)
			}()
		}
	}()
	in := open(t, api.Endpoint{Target: "tcp://" + ln.Addr().String()}, nil)
	for range 20 {
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("\x00\xffabc"))
		c.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(c); string(b) != "cba\xff\x00" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		c.Close()
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if x := in.last(t); x.Outcome != "ok" || x.BytesIn != 5 || x.BytesOut != 5 {
		t.Errorf("%+v", x)
	}
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, func() bool { return in.Status().Counters.Active == 1 })
	if r := in.Close(t.Context(), 0); r.Cancelled != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a cut connection ends well")
	}
}

// dialer is a client that is attached.
type dialer struct{ addr string }

func (d dialer) Open(ctx context.Context) (net.Conn, error) {
	var n net.Dialer
	return n.DialContext(ctx, "tcp", d.addr)
}

func (d dialer) Close() error { return nil }

// TestAttach: there is an answer while no client is attached, and the service's answer
// with one.
func TestAttach(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })
	in := open(t, api.Endpoint{Target: api.TargetClient}, nil)
	get := func() string {
		resp, err := http.Get(in.base)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.Header.Get("X-Bridge-Error") + resp.Header.Get("Retry-After") + string(b)
	}
	if got := get(); !strings.HasPrefix(got, "no_attachment1") {
		t.Error(got)
	}
	for range 2 {
		detach, err := in.Attach(dialer{srv.Listener.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		if got := get(); got != in.addr {
			t.Error(got)
		}
		detach()
		if got := get(); !strings.HasPrefix(got, "no_attachment1") || in.State() != api.EndpointDegraded {
			t.Error(got)
		}
	}
	if _, err := open(t, api.Endpoint{Target: srv.URL}, nil).Attach(dialer{}); api.CodeOf(err) != api.CodeState {
		t.Error(err)
	}
}

// TestMissingSecret: nothing goes on without it.
func TestMissingSecret(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) { t.Error("it was forwarded") })
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"Authorization": "none"}}}, nil)
	resp, err := http.Get(in.base)
	if err != nil || resp.StatusCode != 500 || resp.Header.Get("X-Bridge-Error") != "secret_unavailable" {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
}

// TestEventKeepAlive: a stream of events on which nothing happens is kept alive by
// comments, between events and nowhere else; nothing else is added to.
func TestEventKeepAlive(t *testing.T) {
	next := make(chan string)
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.URL.Query().Get("type"))
		w.(http.Flusher).Flush()
		for text := range next {
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{EventKeepAliveMS: 100}}, nil)
	resp, err := http.Get(in.base + "/?type=text/event-stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	next <- "data: 1\r\n\r\n"
	read("data: 1\r\n\r\n: keep-alive\n\n: keep-alive\n\n")
	next <- "data: half"
	<-time.After(350 * time.Millisecond) // in which nothing may come
	next <- " an event\n\n"
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "data: half an event\n" {
			break
		}
		if line != ": keep-alive\n" && line != "\n" {
			t.Fatalf("%q", line)
		}
	}
	read("\n: keep-alive\n\n")
	close(next)
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF && line == "" {
			break
		}
		if err != nil || line != ": keep-alive\n" && line != "\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}

	next = make(chan string)
	plain, err := http.Get(in.base + "/?type=text/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Body.Close()
	next <- "a\n\n"
	<-time.After(250 * time.Millisecond)
	close(next)
	if b, err := io.ReadAll(plain.Body); string(b) != "a\n\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// TestBytesOfHeaders: what is no UTF-8 goes through as it is, in headers as in bodies.
func TestBytesOfHeaders(t *testing.T) {
	const odd = "caf\xe9 \xff\xfe \xc3"
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Odd", r.Header.Get("X-Odd"))
		io.Copy(w, r.Body)
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	got := in.say(t, "POST /x?q=%ff HTTP/1.1\r\nHost: "+in.addr+"\r\nX-Odd: "+odd+"\r\nContent-Length: 3\r\nConnection: close\r\n\r\n\xff\x00\xfe")
	if !strings.Contains(got, "X-Odd: "+odd+"\r\n") || !strings.HasSuffix(got, "\xff\x00\xfe") {
		t.Errorf("%q", got)
	}
}

//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/test/freeport"
)

// serveHTTP answers what connects to l until it ends.
func serveHTTP(t *testing.T, l net.Listener, h http.HandlerFunc) {
	t.Helper()
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		srv.Close()
		wg.Wait()
	})
}

func listen(t *testing.T, c *agent.Client, port int, isHTTP bool) *agent.Listener {
	t.Helper()
	l, err := c.Listen(t.Context(), agent.ListenOptions{ID: "ep", Port: port, HTTP: isHTTP, Connections: 64})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestListen: what connects inside arrives outside, both families, many at once.
func TestListen(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	serveHTTP(t, listen(t, in.Client, port, true), func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
			return
		}
		w.Write(body)
	})
	for _, host := range []string{"127.0.0.1", "[::1]", "localhost"} {
		base := "http://" + host + ":" + strconv.Itoa(port)
		resp, err := http.Get(base)
		if err != nil {
			if host != "127.0.0.1" && strings.Contains(err.Error(), "assign requested") {
				continue // no IPv6 here
			}
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%s: %d bytes, %v", host, len(got), err)
		}
	}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			resp, err := http.Post("http://127.0.0.1:"+strconv.Itoa(port), "text/plain", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != fmt.Sprint(len(body), nil) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	for _, o := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		if ln, err := net.Listen("tcp", net.JoinHostPort(o, strconv.Itoa(port))); err == nil {
			ln.Close()
			if o != "::1" && o != "::" {
				t.Errorf("%s can be taken", o)
			}
		}
	}
	if err := in.Unlisten(t.Context(), "ep"); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
		c.Close()
		t.Error("it listens after the end")
	}
}

func TestListenRefusals(t *testing.T) {
	in := boot(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().(*net.TCPAddr).Port
	for _, port := range []int{taken, in.port} {
		if _, err := in.Listen(t.Context(), agent.ListenOptions{ID: "a", Port: port, Connections: 1}); !errors.Is(err, api.ErrConflict) {
			t.Errorf("%d: %v", port, err)
		}
	}
	for _, o := range []agent.ListenOptions{{ID: "", Port: 1, Connections: 1}, {ID: "a", Port: 0, Connections: 1}, {ID: "a", Port: 70000, Connections: 1}, {ID: "a", Port: 5000}} {
		if _, err := in.Listen(t.Context(), o); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	port := freeport.Free(t)
	listen(t, in.Client, port, true)
	if _, err := in.Listen(t.Context(), agent.ListenOptions{ID: "other", Port: port, Connections: 1}); !errors.Is(err, api.ErrConflict) {
		t.Error(err)
	}
	if _, err := in.DialPort(t.Context(), port); !errors.Is(err, api.ErrDenied) {
		t.Errorf("from outside: %v", err)
	}
	old := boot(t, func(_ *agent.Config, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, onlyVersion1+"=1") })
	if _, err := old.Listen(t.Context(), agent.ListenOptions{ID: "a", Port: freeport.Free(t), Connections: 1}); api.CodeOf(err) != api.CodeUnsupported {
		t.Error(err)
	}
}

// TestListenOutlivesTheHost: a request under way gets an answer when the host goes,
// what comes meanwhile is turned away, and with a new host it goes on.
func TestListenOutlivesTheHost(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	first := in.connect(t)
	reached := make(chan struct{})
	serveHTTP(t, listen(t, first, port, true), func(w http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	})
	base := "http://127.0.0.1:" + strconv.Itoa(port)
	get := func() (int, string) {
		resp, err := http.Get(base)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("X-Bridge-Error")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, code := get(); status != 502 || code != "bridge_lost" {
			t.Errorf("under way: %d %s", status, code)
		}
	})
	<-reached
	begun := time.Now()
	first.Close()
	wg.Wait()
	if took := time.Since(begun); took > time.Second {
		t.Errorf("it took %s", took)
	}
	if status, code := get(); status != 503 || code != "bridge_absent" {
		t.Errorf("meanwhile: %d %s", status, code)
	}
	serveHTTP(t, listen(t, in.connect(t), port, true), func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "back") })
	if status, code := get(); status != 200 {
		t.Errorf("afterwards: %d %s", status, code)
	}
}

// TestListenAsksTooLate: a client that had connected, and asks when the host is gone, gets
// an answer; one that had its answer sees the end of its connection.
func TestListenAsksTooLate(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	first := in.connect(t)
	came := make(chan http.ConnState, 16)
	srv := &http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }),
		ConnState: func(_ net.Conn, s http.ConnState) { came <- s },
	}
	l := listen(t, first, port, true)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Close(); wg.Wait() })
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for s := range came {
			if s == http.StateNew {
				break
			}
		}
		return c, bufio.NewReader(c)
	}
	const request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	old, answers := dial()
	if _, err := io.WriteString(old, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "here" {
		t.Fatalf("%q, %v", body, err)
	}
	fresh, late := dial()
	first.Close()
	if _, err := answers.ReadByte(); err == nil {
		t.Error("a client that asked for nothing more was told more")
	}
	// By now the agent knows that the host is gone.
	if _, err := io.WriteString(fresh, request); err != nil {
		t.Fatal(err)
	}
	resp, err = http.ReadResponse(late, nil)
	if err != nil || resp.StatusCode != 502 || resp.Header.Get("X-Bridge-Error") != "bridge_lost" {
		t.Fatalf("%+v, %v", resp, err)
	}
	resp.Body.Close()
}

// TestListenRaw: each direction ends by itself, and a reset stays one.
func TestListenRaw(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	l := listen(t, in.Client, port, false)
	dial := func() (*net.TCPConn, net.Conn) {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { far.Close() })
		return c.(*net.TCPConn), far
	}
	near, far := dial()
	fmt.Fprint(near, "question")
	near.CloseWrite()
	if got, err := io.ReadAll(far); string(got) != "question" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	fmt.Fprint(far, "answer")
	far.Close()
	if got, err := io.ReadAll(near); string(got) != "answer" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	near, far = dial()
	far.(interface{ Reset() }).Reset()
	if _, err := io.ReadAll(near); err == nil {
		t.Error("a reset of the host's is a proper end inside")
	}
	near, far = dial()
	fmt.Fprint(near, "x")
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	near.SetLinger(0)
	near.Close()
	if _, err := io.ReadAll(far); err == nil {
		t.Error("a reset inside is a proper end for the host")
	}
}

// TestListenBounds: more connections than were asked for are turned away.
func TestListenBounds(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	l, err := in.Listen(t.Context(), agent.ListenOptions{ID: "few", Port: port, Connections: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
	}
	c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if errors.Is(err, syscall.ECONNRESET) {
		return // before it was seen to be there
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the third: %v", err)
	}
}

package endpoint_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestAnswersAreTheTargets says the same requests to a target and to its endpoint, and
// compares what comes back, byte by byte except for the time of day.
func TestAnswersAreTheTargets(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, strings.Repeat("a model's answer ", 1000))
	z.Close()
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped.Bytes())
		case "/cookies":
			w.Header()["Set-Cookie"] = []string{"a=1; Path=/", "b=2; HttpOnly", "a=3"}
			w.Header()["Warning"] = []string{"199 one", "199 two"}
			io.WriteString(w, "x")
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `W/"x"`)
			w.WriteHeader(304)
		case "/early":
			w.Header().Set("Link", "</s.css>; rel=preload")
			w.WriteHeader(103)
			w.Header().Set("X-Job", "2")
			w.WriteHeader(102)
			w.Header().Del("Link")
			io.WriteString(w, "late")
		case "/odd":
			w.WriteHeader(599)
			io.WriteString(w, "\xff\xfe\x00")
		case "/range":
			http.ServeContent(w, r, "f.bin", time.Unix(1e9, 0), bytes.NewReader([]byte("0123456789")))
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	direct := &inside{addr: strings.TrimPrefix(srv.URL, "http://")}
	for _, c := range []struct{ method, path, more string }{
		{"GET", "/gzip", "Accept-Encoding: gzip\r\n"}, {"HEAD", "/gzip", ""}, {"GET", "/cookies", ""}, {"HEAD", "/cookies", ""}, {"GET", "/204", ""},
		{"DELETE", "/204", ""}, {"GET", "/304", ""}, {"GET", "/early", ""}, {"GET", "/odd", ""}, {"GET", "/range", "Range: bytes=2-4\r\n"},
		{"GET", "/range", "Range: bytes=20-\r\n"}, {"HEAD", "/range", ""},
	} {
		say := func(to *inside) string {
			// The end of the connection is the end of the answer, and is said by both.
			answer := to.say(t, c.method+" "+c.path+" HTTP/1.1\r\nHost: "+to.addr+"\r\nUser-Agent: t\r\n"+c.more+"Connection: close\r\n\r\n")
			return withoutDates(answer)
		}
		if got, want := say(in), say(direct); got != want || want == "" {
			t.Errorf("%s %s:\n%q, and the target says\n%q", c.method, c.path, got, want)
		}
	}
}

// withoutDates sorts the headers of each head, and leaves the time of day out.
func withoutDates(answer string) string {
	var out []string
	for strings.HasPrefix(answer, "HTTP/1.1 ") {
		head, rest, _ := strings.Cut(answer, "\r\n\r\n")
		lines := slices.DeleteFunc(strings.Split(head, "\r\n"), func(l string) bool { return strings.HasPrefix(l, "Date: ") })
		slices.Sort(lines)
		out, answer = append(out, lines...), rest
	}
	return strings.Join(append(out, answer), "\n")
}

// pipes is a listener whose connections are made in this process.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 13131} }

// dial is a connection to who listens.
func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

// TestSlowHead: who sends the head of a request a byte a second is cut off after ten,
// and has held only its own connection.
func TestSlowHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := openOn(t, &pipes{conns: make(chan net.Conn), done: make(chan struct{})}, api.Endpoint{Target: api.TargetClient, Listen: "127.0.0.1:13131", Limits: api.EndpointLimits{Active: 1, Connections: 2}})
		slow := in.pipes.dial()
		go io.Copy(io.Discard, slow) // what it is told, which a pipe does not keep
		begun := time.Now()
		sent := 0
		for _, b := range []byte("GET / HTTP/1.1\r\nHost: 127.0.0.1:13131\r\n\r\n") {
			if _, err := slow.Write([]byte{b}); err != nil {
				break
			}
			sent++
			time.Sleep(time.Second)
			if sent == 5 {
				// Meanwhile the one slot is free: the answer is that no client serves it.
				c := in.pipes.dial()
				go io.WriteString(c, "GET / HTTP/1.1\r\nHost: 127.0.0.1:13131\r\nConnection: close\r\n\r\n")
				if answer, _ := io.ReadAll(c); !bytes.Contains(answer, []byte("no_attachment")) {
					t.Errorf("beside it: %q", answer)
				}
				c.Close()
			}
		}
		if took := time.Since(begun); took < 10*time.Second || took > 11*time.Second || sent > 11 {
			t.Errorf("it went on for %s and %d bytes", took, sent)
		}
		slow.Close()
		synctest.Wait()
		if c := in.Status().Counters; c.Connections != 0 || c.Active != 0 {
			t.Errorf("afterwards: %+v", c)
		}
	})
}

// openOn is open on a listener of the test's.
func openOn(t *testing.T, ln *pipes, spec api.Endpoint) *onPipes {
	t.Helper()
	spec.Name = "model"
	in := &onPipes{pipes: ln, inside: newInside(t, spec, nil)}
	var wg sync.WaitGroup
	wg.Go(func() { in.Serve(ln) })
	t.Cleanup(func() {
		ln.Close()
		in.Close(context.WithoutCancel(t.Context()), 0)
		wg.Wait()
	})
	return in
}

type onPipes struct {
	*inside
	pipes *pipes
}

package endpoint

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
)

// maxHead bounds the head of a request, maxHeaders the headers in it.
const (
	maxHead    = 64 << 10
	maxHeaders = 128
)

// connKey is the key of a connection in the contexts of its requests.
type connKey struct{}

func (e *Endpoint) newServer() *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(e.serve), ReadHeaderTimeout: headTime, IdleTimeout: keepTime, MaxHeaderBytes: maxHead, DisableGeneralOptionsHandler: true,
		// What a sandbox sends wrong is on record where it is refused, and fills no log.
		ErrorLog:    log.New(nothing{}, "", 0),
		BaseContext: func(net.Listener) context.Context { return e.ctx },
		ConnState: func(c net.Conn, state http.ConnState) {
			if f, ok := c.(*followed); ok && state == http.StateIdle {
				f.handled.Store(false) // its answer has been sent
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// nothing discards what is written to it.
type nothing struct{}

func (nothing) Write(p []byte) (int, error) { return len(p), nil }

// counted is a listener whose connections are counted, bounded and followed.
type counted struct {
	net.Listener
	e *Endpoint
}

// Accept implements net.Listener.
func (l *counted) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		full := l.e.conns.Add(1) > int64(l.e.o.Spec.Limits.Connections)
		if full || !l.e.o.Share.take() {
			l.e.conns.Add(-1)
			l.e.failed(codeBusy)
			reset(c)
			continue
		}
		f := &followed{Conn: c, e: l.e}
		f.frame.begin()
		return f, nil
	}
}

// peerOf is who has made a connection; nil is not known.
func peerOf(c net.Conn) *api.ExchangePeer {
	if p, ok := c.(interface {
		Peer() (uid uint32, pid int, ok bool)
	}); ok {
		if uid, pid, ok := p.Peer(); ok {
			return &api.ExchangePeer{UID: uid, PID: pid}
		}
	}
	return nil
}

// followed is a connection from inside.
type followed struct {
	net.Conn
	e     *Endpoint
	frame framing
	once  sync.Once
	// handled says that a request is being answered that came to the endpoint. What is
	// written otherwise is net/http's own, about one that did not.
	handled atomic.Bool
	// refused: such an answer was written, which is the last of the connection.
	refused bool
}

// Write implements net.Conn. net/http writes an answer of its own by one goroutine, when
// no request is handled.
func (f *followed) Write(b []byte) (int, error) {
	if f.handled.Load() {
		return f.Conn.Write(b)
	}
	if f.refused {
		return len(b), nil
	}
	f.refused = true
	if _, err := f.Conn.Write(f.e.unread(f.Conn, b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// unread puts on record that a request was refused before the endpoint had it, and makes
// the answer out of net/http's. What such a request says of itself is not on record: it
// could not be read.
func (e *Endpoint) unread(c net.Conn, said []byte) []byte {
	line, _, _ := strings.Cut(string(said), "\r\n")
	_, line, _ = strings.Cut(line, " ")
	status, why, _ := strings.Cut(line, " ")
	_, why, _ = strings.Cut(why, ": ")
	x := e.exchange()
	x.Peer, x.Code = peerOf(c), codeMalformed
	if x.Status, _ = strconv.Atoi(status); x.Status < 400 || x.Status > 599 {
		x.Status = http.StatusBadRequest
	}
	if x.Status == http.StatusRequestHeaderFieldsTooLarge {
		x.Code = codeHeaders
	}
	x.Outcome = outcomeOf(x.Code, 0)
	e.running.Add(1)
	e.requests.Add(1)
	e.failed(x.Code)
	e.o.Observer.Exchanged(x)
	e.end()
	body := bodyOf(x.Code, cut(why, 100), x.ID)
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Bridge-Error: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		x.Status, http.StatusText(x.Status), x.Code, len(body))
	return append([]byte(head), body...)
}

// Read implements net.Conn; one goroutine reads.
func (f *followed) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	f.frame.see(b[:n])
	return n, err
}

// Close implements net.Conn.
func (f *followed) Close() error {
	f.once.Do(func() {
		f.e.conns.Add(-1)
		f.e.o.Share.release()
	})
	return f.Conn.Close()
}

// CloseWrite ends what is sent, where the connection can.
func (f *followed) CloseWrite() error {
	if half, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// opaque says that the connection is HTTP no more.
func (f *followed) opaque() {
	f.frame.opaque.Store(true)
	if c, ok := f.Conn.(interface{ Opaque() error }); ok {
		_ = c.Opaque() // a connection that is gone is noticed when it is used
	}
}

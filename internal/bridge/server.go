package bridge

import (
	"context"
	"log"
	"net"
	"net/http"
	"sync"

	"github.com/cloche-dev/cloche"
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
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// nothing takes what nobody reads.
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
func peerOf(c net.Conn) *cloche.ExchangePeer {
	if p, ok := c.(interface {
		Peer() (uid uint32, pid int, ok bool)
	}); ok {
		if uid, pid, ok := p.Peer(); ok {
			return &cloche.ExchangePeer{UID: uid, PID: pid}
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

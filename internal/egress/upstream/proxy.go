package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Proxy is an HTTP proxy that connects to names for us.
type Proxy struct {
	// Address is HOST:PORT of the proxy.
	Address string
	// TLS is for a proxy that is spoken to over TLS; nil is plain.
	TLS *tls.Config
	// Authorization is the value of the Proxy-Authorization field, asked for at
	// each connection so that it can change; it may be nil. It is never in an error.
	Authorization func(context.Context) (string, error)
	// Except are names to which we connect ourselves, and below them where they
	// begin with a dot.
	Except []string
	// ExceptAddrs are the same for listed addresses.
	ExceptAddrs []netip.Prefix
}

// maxProxyHead bounds the answer of a proxy, in bytes.
const maxProxyHead = 16 << 10

// ProxyError is a proxy that answered and did not connect.
type ProxyError struct {
	// To is what was asked for.
	To string
	// Status is the proxy's.
	Status int
}

// Error implements error.
func (e *ProxyError) Error() string {
	return fmt.Sprintf("connect to %s: the upstream proxy answered %d %s", e.To, e.Status, http.StatusText(e.Status))
}

func (p *Proxy) excepts(n rule.Name) bool {
	return slices.ContainsFunc(p.Except, func(e string) bool {
		below, ok := strings.CutPrefix(e, ".")
		return string(n) == below || ok && strings.HasSuffix(string(n), e)
	})
}

func (p *Proxy) exceptsAddr(a netip.Addr) bool {
	return slices.ContainsFunc(p.ExceptAddrs, func(e netip.Prefix) bool { return e.Contains(a) })
}

// connect opens a tunnel to HOST:PORT.
func (p *Proxy) connect(ctx context.Context, d ContextDialer, to string) (_ net.Conn, err error) {
	conn, err := d.DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil, fmt.Errorf("dial upstream proxy: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	// A proxy that says nothing is given up when ctx ends.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	if p.TLS != nil {
		secured := tls.Client(conn, p.TLS)
		if err := secured.HandshakeContext(ctx); err != nil {
			stop()
			return nil, fmt.Errorf("greet upstream proxy: %w", err)
		}
		conn = secured
	}
	tunnel, err := p.ask(ctx, conn, to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return tunnel, nil
}

func (p *Proxy) ask(ctx context.Context, conn net.Conn, to string) (net.Conn, error) {
	head := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if p.Authorization != nil {
		value, err := p.Authorization(ctx)
		switch {
		case err != nil:
			return nil, errors.New("connect by upstream proxy: its authorization is not available")
		case strings.ContainsAny(value, "\r\n\x00"):
			return nil, errors.New("connect by upstream proxy: its authorization has a byte in it that no field may have")
		case value != "":
			head += "Proxy-Authorization: " + value + "\r\n"
		}
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return nil, fmt.Errorf("ask upstream proxy: %w", err)
	}
	limited := &io.LimitedReader{R: conn, N: maxProxyHead}
	r := bufio.NewReader(limited)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // what follows is the tunnel's
	if err != nil {
		return nil, fmt.Errorf("read answer of upstream proxy: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, &ProxyError{to, res.StatusCode}
	}
	early := make([]byte, r.Buffered())
	if _, err := io.ReadFull(r, early); err != nil {
		return nil, fmt.Errorf("read answer of upstream proxy: %w", err)
	}
	if len(early) == 0 {
		return conn, nil
	}
	return &tunnel{Conn: conn, early: early}, nil
}

// tunnel is a connection whose first bytes came with the proxy's answer.
type tunnel struct {
	net.Conn
	early []byte
}

// Read implements net.Conn; one goroutine reads.
func (t *tunnel) Read(b []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(b, t.early)
		t.early = t.early[n:]
		return n, nil
	}
	return t.Conn.Read(b)
}

// CloseWrite ends what we send, where the connection beneath can.
func (t *tunnel) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

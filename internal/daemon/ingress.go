//go:build linux || darwin || windows

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/ingress"
)

// ingressFile is in the home of a daemon that has served ports of sandboxes. It holds the TCP port of
// the usual listener, so that URLs stay valid when the daemon is started again.
const ingressFile = "ports"

// Ingress says how a daemon serves ports of sandboxes.
type Ingress struct {
	// Listen is an address, "HOST:PORT". Empty is a free port of the loopback addresses, which is
	// kept in the home and opened with the first port of a sandbox.
	Listen string
	// URL is the URL of ports for clients, such as "https://*.box.example.org". Empty is
	// "http://*.localhost" with the port of the listener.
	URL string
	// TLSCert and TLSKey are files of a certificate for *.DOMAIN and its key. Empty is no TLS.
	TLSCert, TLSKey string
}

// ports is the listener for ports of sandboxes. It is opened when the first port is.
type ports struct {
	h   *app
	cfg Ingress

	mu     sync.Mutex
	server *ingress.Server
	base   ingress.Base
	open   listeners
	failed chan error
	wg     sync.WaitGroup
	closed bool
}

// openPorts prepares the listener, and opens it if the settings name its address, or an earlier
// daemon had it.
func (h *app) openPorts(ctx context.Context, cfg Ingress) (*ports, error) {
	p := &ports{h: h, cfg: cfg, failed: make(chan error, 2)}
	if !h.ports.CompareAndSwap(nil, p) {
		return nil, errors.New("the listener for ports is open already")
	}
	if cfg.URL != "" {
		base, err := ingress.ParseBase(cfg.URL)
		if err != nil {
			return nil, err
		}
		if cfg.TLSCert != "" && !base.Secure() {
			return nil, api.Invalid("ports.url", "ports.url %q is without TLS, and ports.tls.cert is set", cfg.URL).WithHint("write https://")
		}
	}
	if cfg.Listen == "" && p.remembered() == 0 {
		return p, nil
	}
	_, err := p.start(ctx)
	if err != nil && cfg.Listen == "" {
		h.log.Warn("ports of sandboxes are not served", "error", err)
		err = nil
	}
	return p, err
}

// portOriginOf returns portOrigin for a daemon, and nil for a run without one.
func (h *app) portOriginOf(ephemeral bool) func(context.Context, string, int) (string, error) {
	if ephemeral {
		return nil
	}
	return h.portOrigin
}

// portOrigin returns the origin of a port, and opens the listener if needed.
func (h *app) portOrigin(ctx context.Context, sandbox string, port int) (string, error) {
	p := h.ports.Load()
	if p == nil {
		return "", api.Errorf(api.CodeUnavailable, "the daemon does not serve ports yet").WithHint("try again")
	}
	base, err := p.start(ctx)
	if err != nil {
		return "", err
	}
	return base.Origin(sandbox, port), nil
}

// remembered returns the TCP port of an earlier daemon, or 0.
func (p *ports) remembered() int {
	data, err := os.ReadFile(p.h.home.path(ingressFile))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n < 1 || n > 65535 {
		return 0
	}
	return n
}

// remember keeps the TCP port for the next daemon.
func (p *ports) remember(port int) {
	root, err := os.OpenRoot(p.h.home.dir)
	if err == nil {
		err = errors.Join(hostfile.Replace(root, ingressFile, []byte(strconv.Itoa(port)+"\n")), root.Close())
	}
	if err != nil {
		p.h.log.Warn("URLs of ports change when the daemon is started again", "error", err)
	}
}

// start opens the listener, once.
func (p *ports) start(ctx context.Context) (ingress.Base, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ingress.Base{}, api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	case p.server != nil:
		return p.base, nil
	}
	certificate, err := openCertificate(p.cfg.TLSCert, p.cfg.TLSKey, p.h.log)
	if err != nil {
		return ingress.Base{}, err
	}
	open, err := p.listen(ctx)
	if err != nil {
		return ingress.Base{}, err
	}
	at, err := p.allowed(open)
	if err != nil {
		open.close()
		return ingress.Base{}, err
	}
	o := ingress.Options{Core: p.h.core, Base: ingress.Base{Scheme: "http", Domain: "localhost", Port: int(at.Port())}}
	if certificate != nil {
		o.Base.Scheme, o.Certificate = "https", certificate.get
	}
	if p.cfg.URL != "" {
		if o.Base, err = ingress.ParseBase(p.cfg.URL); err != nil {
			open.close()
			return ingress.Base{}, err
		}
	}
	p.server, p.base, p.open = ingress.New(o), o.Base, open
	for _, ln := range open {
		p.wg.Go(func() {
			if err := p.server.Serve(ln); err != nil {
				p.failed <- err
			}
		})
	}
	p.h.log.Info("serving ports of sandboxes", "listen", at.String(), "url", o.Base.Scheme+"://*."+o.Base.Domain, "tls", certificate != nil)
	return p.base, nil
}

// allowed returns the address of the first listener, if the rules allow all of them.
func (p *ports) allowed(open listeners) (first netip.AddrPort, err error) {
	for _, ln := range open {
		a, ok := ln.Addr().(*net.TCPAddr)
		if !ok {
			return first, fmt.Errorf("listen for ports of sandboxes: %T", ln.Addr())
		}
		if err := p.h.core.AuthorizePublish(a.AddrPort().Addr()); err != nil {
			return first, err
		}
		if !first.IsValid() {
			first = a.AddrPort()
		}
	}
	return first, nil
}

// listen opens the address of the settings, or the usual one: the same port of 127.0.0.1 and of ::1,
// because browsers connect to either for names below localhost, and no other program may have the
// second.
func (p *ports) listen(ctx context.Context) (listeners, error) {
	var lc net.ListenConfig
	if p.cfg.Listen != "" {
		network := "tcp"
		if at, err := netip.ParseAddrPort(p.cfg.Listen); err == nil && at.Addr().Is4() {
			network = "tcp4" // 0.0.0.0 is not the addresses of IPv6 too
		}
		ln, err := lc.Listen(ctx, network, p.cfg.Listen)
		if err != nil {
			return nil, api.Errorf(api.CodeUnavailable, "cannot listen at %s for ports of sandboxes: %w", p.cfg.Listen, err)
		}
		return listeners{ln}, nil
	}
	was := p.remembered()
	port := was
	var last error
	for range 16 {
		open, err := listenLoopback(ctx, port)
		if err == nil {
			now := open[0].Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is of "tcp4"
			if was != 0 && now != was {
				p.h.log.Warn("URLs of ports have changed, because another program uses the earlier port", "was", was, "is", now)
			}
			p.remember(now)
			return open, nil
		}
		last, port = err, 0
	}
	return nil, api.Errorf(api.CodeUnavailable, "cannot listen at a loopback address for ports of sandboxes: %w", last)
}

func listenLoopback(ctx context.Context, port int) (listeners, error) {
	var lc net.ListenConfig
	four, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	port = four.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is of "tcp4"
	six, err := lc.Listen(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
	if err == nil {
		return listeners{four, six}, nil
	}
	if other, oerr := lc.Listen(ctx, "tcp6", "[::1]:0"); oerr == nil {
		_ = other.Close()
		_ = four.Close()
		return nil, err // another program has the port
	}
	return listeners{four}, nil // this machine has no IPv6
}

// ended tells when a listener is closed by itself; nil never is.
func (p *ports) ended() <-chan error {
	if p == nil {
		return nil
	}
	return p.failed
}

// close ends all exchanges with ports.
func (p *ports) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed = true
	server, open := p.server, p.open
	p.mu.Unlock()
	if server != nil {
		server.Shutdown()
	}
	open.close()
	p.wg.Wait()
}

// listensAt reports whether an address is one of the listener.
func (p *ports) listensAt(to netip.AddrPort) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open.at(to)
}

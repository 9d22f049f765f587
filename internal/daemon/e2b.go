//go:build linux || darwin || windows

package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/e2bapi"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

const (
	// e2bHeaderTimeout bounds how long the header of a request may take.
	e2bHeaderTimeout = 10 * time.Second
	maxE2BHeader     = 64 << 10
)

// e2bServer is the API server for clients of E2B while it is open.
type e2bServer struct {
	api    *e2bapi.Server
	data   *envd.Server
	http   *http.Server // at an address of its own; nil if there is no such address
	wg     sync.WaitGroup
	failed chan error
}

// openE2B opens the API server for clients of E2B, if the daemon listens at a TCP address or the
// configuration has an address of its own for them. token and certificate are the daemon's; certificate can
// be nil.
func (h *app) openE2B(ctx context.Context, cfg Config, at listeners, token string, certificate *certificate) (*e2bServer, error) {
	shared := at.tcp()
	if cfg.E2B.Listen == "" && shared == nil {
		return nil, nil
	}
	data := envd.New(envd.Options{Core: envd.FromCore(h.core), Log: h.log})
	server, err := e2bapi.New(ctx, e2bapi.Options{
		Core: h.core, DataPlane: data, Dir: h.home.path("e2b"), Profile: cfg.E2B.Profile, Allow: cfg.E2B.Allow, Domain: cfg.E2B.Domain,
		Token: token, Peer: peers(), Hosts: append(h.ownNames(cfg.Listen), cfg.Hosts...), Redact: h.secrets.Redact, Logger: h.log,
	})
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	e := &e2bServer{api: server, data: data, failed: make(chan error, 1)}
	if len(cfg.E2B.Allow) == 0 {
		h.log.Info("sandboxes of E2B's clients have the network of their profile; e2b.allow in settings.yaml gives them another, such as \"*\"")
	}
	scheme := "http"
	if certificate != nil {
		scheme = "https"
	}
	if cfg.E2B.Listen == "" {
		h.e2b.Store(&e2bAddress{scheme + "://" + shared.Addr().String(), true})
		return e, nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.E2B.Listen)
	if err != nil {
		return nil, errors.Join(api.Errorf(api.CodeUnavailable, "cannot listen at %s for clients of E2B: %w", cfg.E2B.Listen, err).
			WithHint("choose another address with e2b.listen in settings.yaml or --e2b"), server.Close(), data.Close())
	}
	e.http = &http.Server{
		Handler: server, ReadHeaderTimeout: e2bHeaderTimeout, IdleTimeout: e2bapi.IdleTimeout, MaxHeaderBytes: maxE2BHeader,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	serve := func() error { return e.http.Serve(ln) }
	if certificate != nil {
		e.http.TLSConfig = &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		serve = func() error { return e.http.ServeTLS(ln, "", "") }
	} else if at, ok := ln.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		h.log.Warn("clients of E2B are served in the clear at an address that other machines reach: set tls.cert and tls.key", "address", ln.Addr().String())
	}
	url := scheme + "://" + ln.Addr().String()
	h.e2b.Store(&e2bAddress{url, !knowsPeers})
	h.log.Info("serving clients of E2B", "url", url)
	e.wg.Go(func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			e.failed <- fmt.Errorf("serve clients of E2B: %w", err)
		}
	})
	return e, nil
}

// also returns what the native API's TCP listeners serve beside it, or nil.
func (e *e2bServer) also() httpapi.Also {
	if e == nil {
		return nil
	}
	return e.api.Shared()
}

// peers returns what knows the user at the other end of a connection, or nil on a system that does not tell.
func peers() func(local, remote string) error {
	if !knowsPeers {
		return nil
	}
	return sameUser
}

// e2bAddress is where clients of E2B are served, and whether all of them need a key there.
type e2bAddress struct {
	url      string
	needsKey bool
}

// e2bAt returns where clients of E2B are served, or "".
func (h *app) e2bAt() (url string, needsKey bool) {
	if at := h.e2b.Load(); at != nil {
		return at.url, at.needsKey
	}
	return "", false
}

// ended tells when the API server is closed by itself; nil never is.
func (e *e2bServer) ended() <-chan error {
	if e == nil {
		return nil
	}
	return e.failed
}

// close breaks streams off: processes outlive them.
func (e *e2bServer) close() error {
	if e == nil {
		return nil
	}
	var err error
	if e.http != nil {
		err = e.http.Close()
	}
	err = errors.Join(err, e.data.Close())
	e.wg.Wait()
	return errors.Join(err, e.api.Close())
}

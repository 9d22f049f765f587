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
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/e2bapi"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
)

const (
	// e2bHeaderTimeout bounds how long the header of a request may take, and e2bIdleTimeout how long a
	// connection may be idle: E2B's clients keep connections for longer than usual.
	e2bHeaderTimeout = 10 * time.Second
	e2bIdleTimeout   = 11 * time.Minute
	maxE2BHeader     = 64 << 10
)

// e2bServer is the API server for clients of E2B while it is open.
type e2bServer struct {
	api    *e2bapi.Server
	data   *envd.Server
	http   *http.Server
	wg     sync.WaitGroup
	failed chan error
}

// openE2B opens the API server for clients of E2B, where the configuration has one.
func (h *app) openE2B(ctx context.Context, cfg Config) (*e2bServer, error) {
	if cfg.E2B == nil {
		return nil, nil
	}
	certificate, err := openCertificate(cfg.TLSCert, cfg.TLSKey, h.log)
	if err != nil {
		return nil, err
	}
	data := envd.New(envd.Options{Core: envd.FromCore(h.core), Log: h.log})
	server, err := e2bapi.New(ctx, e2bapi.Options{
		Core: h.core, DataPlane: data, Dir: h.home.path("e2b"), Profile: cfg.E2B.Profile, Allow: cfg.E2B.Allow, Domain: cfg.E2B.Domain,
		Token: cfg.Token, Peer: peers(), Hosts: append(h.ownNames(nil), cfg.Hosts...), Redact: h.secrets.Redact, Logger: h.log,
	})
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.E2B.Listen)
	if err != nil {
		return nil, errors.Join(api.Errorf(api.CodeUnavailable, "cannot listen at %s for clients of E2B: %w", cfg.E2B.Listen, err).
			WithHint("choose another address with e2b.listen in settings.yaml or --e2b"), server.Close(), data.Close())
	}
	e := &e2bServer{api: server, data: data, failed: make(chan error, 1), http: &http.Server{
		Handler: server, ReadHeaderTimeout: e2bHeaderTimeout, IdleTimeout: e2bIdleTimeout, MaxHeaderBytes: maxE2BHeader,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}}
	scheme := "http"
	if certificate != nil {
		scheme, e.http.TLSConfig = "https", &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	} else if at, ok := ln.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		h.log.Warn("clients of E2B are served in the clear at an address that other machines reach: set tls.cert and tls.key", "address", ln.Addr().String())
	}
	if len(cfg.E2B.Allow) == 0 {
		h.log.Info("sandboxes of E2B's clients have the network of their profile; e2b.allow in settings.yaml gives them another, such as \"*\"")
	}
	url := scheme + "://" + ln.Addr().String()
	h.e2b.Store(&url)
	h.log.Info("serving clients of E2B", "url", url)
	e.wg.Go(func() {
		serve := func() error { return e.http.Serve(ln) }
		if certificate != nil {
			serve = func() error { return e.http.ServeTLS(ln, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			e.failed <- fmt.Errorf("serve clients of E2B: %w", err)
		}
	})
	return e, nil
}

// peers returns what knows the user at the other end of a connection, or nil on a system that does not tell.
func peers() func(local, remote string) error {
	if !knowsPeers {
		return nil
	}
	return sameUser
}

// e2bURL is the address at which clients of E2B are served, or "".
func (h *app) e2bURL() string {
	if url := h.e2b.Load(); url != nil {
		return strings.Clone(*url)
	}
	return ""
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
	err := errors.Join(e.http.Close(), e.data.Close())
	e.wg.Wait()
	return errors.Join(err, e.api.Close())
}

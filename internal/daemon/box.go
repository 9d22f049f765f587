//go:build linux || darwin || windows

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/langbot"
)

// box is the API server while it is open.
type box struct {
	server *langbot.Server
	http   *http.Server
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan error
}

// boxHeaderTimeout bounds how long the header of a request may take.
const boxHeaderTimeout = 10 * time.Second

// openBox opens the API server for LangBot, where the configuration has one.
func (h *app) openBox(ctx context.Context, cfg Config) (*box, error) {
	if cfg.Box == nil {
		return nil, nil
	}
	c := *cfg.Box
	token := strings.TrimSpace(os.Getenv("LANGBOT_BOX_CONTROL_TOKEN"))
	wd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("open the LangBot listener: %w", err)
	}
	server, err := langbot.New(ctx, langbot.Options{
		Core: langbot.FromCore(h.core), Dir: h.home.path("box"), SkillsDir: cmp.Or(cfg.SkillsDir, h.home.path("skills")), WorkDir: wd, Token: token,
		Instance: os.Getenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID"), Config: os.Getenv("LANGBOT_BOX_CONFIG"), Environ: os.Environ(),
		Peer: sameUser, Deadlines: langbot.Deadlines{Call: cfg.Deadlines.Call, Change: cfg.Deadlines.Change, Work: cfg.Deadlines.Work},
		FileDir: fileStorage(), UnsafeStorage: isOn(os.Getenv("LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS")), Redact: h.secrets.Redact, Logger: h.log,
	})
	if err != nil {
		return nil, err
	}
	if c.In != nil && os.Getenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID") == "" {
		return nil, errors.Join(api.Invalid("stdio-control", "a control connection on stdio needs the instance that is trusted").
			WithHint("set LANGBOT_BOX_TRUSTED_INSTANCE_UUID"), server.Close(ctx))
	}
	at := net.JoinHostPort(cmp.Or(c.Host, usualBoxHost(token)), strconv.Itoa(c.Port))
	ln, err := listenForBox(at, token)
	if _, refused := errors.AsType[*api.Error](err); refused && c.In == nil {
		return nil, errors.Join(err, server.Close(ctx))
	}
	if err != nil && c.In == nil {
		return nil, errors.Join(api.Errorf(api.CodeUnavailable, "cannot listen at %s: %w", at, err), server.Close(ctx))
	}
	b := &box{server: server, failed: make(chan error, 2), http: &http.Server{Handler: server.Handler(), ReadHeaderTimeout: boxHeaderTimeout}}
	if err != nil {
		h.log.Warn("relays and probes are not served, because their address is not available", "address", at, "error", err)
	} else {
		if token == "" {
			h.log.Info("there is no control token, so only the user that the daemon runs as is served, from this machine: set LANGBOT_BOX_CONTROL_TOKEN for others")
		}
		h.log.Info("serving LangBot", "address", ln.Addr().String())
		b.wg.Go(func() {
			if err := b.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				b.failed <- fmt.Errorf("serve LangBot: %w", err)
			}
		})
	}
	var life context.Context
	life, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if c.In != nil {
		b.wg.Go(func() { b.failed <- server.ServeStdio(life, c.In, c.Out) })
	}
	return b, nil
}

// usualBoxHost is every address only where not everybody may come.
func usualBoxHost(token string) string {
	if token == "" {
		return "127.0.0.1"
	}
	return "0.0.0.0"
}

// listenForBox listens at an address. Without a token a connection is known by the user
// at its other end, which this machine's own kernel has to tell.
func listenForBox(at, token string) (net.Listener, error) {
	const hint = "set LANGBOT_BOX_CONTROL_TOKEN, such as to the output of `openssl rand -hex 32`"
	if token == "" && !knowsPeers {
		return nil, api.Errorf(api.CodeInvalid, "LangBot is served with a control token only: this system does not tell which user connects").WithHint(hint)
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	if a, ok := ln.Addr().(*net.TCPAddr); token == "" && (!ok || !a.IP.IsLoopback()) {
		_ = ln.Close()
		return nil, api.Errorf(api.CodeInvalid, "the address %s is reached from other machines, and there is no control token", at).
			WithHint("%s; or listen at 127.0.0.1", hint)
	}
	return ln, nil
}

// fileStorage is where LangBot's own programs keep what is uploaded.
func fileStorage() string {
	if dir := os.Getenv("LANGBOT_PLUGIN_FILE_STORAGE_DIR"); dir != "" {
		return dir
	}
	return ""
}

func isOn(v string) bool {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// ended tells when the API server is closed by itself; nil never is.
func (b *box) ended() <-chan error {
	if b == nil {
		return nil
	}
	return b.failed
}

func (b *box) close(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.cancel()
	err := b.server.Close(ctx)
	err = errors.Join(err, b.http.Close())
	b.wg.Wait()
	return err
}

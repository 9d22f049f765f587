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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/langbot"
)

// box is the door while it is open.
type box struct {
	server *langbot.Server
	http   *http.Server
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan error
}

// boxHeaderTimeout bounds how long the header of a request may take.
const boxHeaderTimeout = 10 * time.Second

// openBox opens the door for LangBot, where the configuration has one.
func (h *house) openBox(ctx context.Context, cfg Config) (*box, error) {
	if cfg.Box == nil {
		return nil, nil
	}
	c := *cfg.Box
	token := strings.TrimSpace(os.Getenv("LANGBOT_BOX_CONTROL_TOKEN"))
	wd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("open the box door: %w", err)
	}
	server, err := langbot.New(ctx, langbot.Options{
		Core: langbot.FromCore(h.core), Dir: h.home.path("box"), SkillsDir: cmp.Or(cfg.SkillsDir, h.home.path("skills")), WorkDir: wd, Token: token,
		Instance: os.Getenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID"), Config: os.Getenv("LANGBOT_BOX_CONFIG"), Environ: os.Environ(),
		FileDir: fileStorage(), UnsafeStorage: isOn(os.Getenv("LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS")), Logger: h.log,
	})
	if err != nil {
		return nil, err
	}
	if c.In != nil && os.Getenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID") == "" {
		return nil, errors.Join(cloche.Invalid("stdio-control", "a control connection on stdio needs the instance that is trusted").
			WithHint("set LANGBOT_BOX_TRUSTED_INSTANCE_UUID"), server.Close(ctx))
	}
	at := net.JoinHostPort(cmp.Or(c.Host, usualBoxHost(token)), strconv.Itoa(c.Port))
	ln, err := net.Listen("tcp", at)
	if err != nil && c.In == nil {
		return nil, errors.Join(cloche.Errorf(cloche.CodeUnavailable, "cannot listen at %s: %w", at, err), server.Close(ctx))
	}
	b := &box{server: server, failed: make(chan error, 2), http: &http.Server{Handler: server.Handler(), ReadHeaderTimeout: boxHeaderTimeout}}
	if err != nil {
		h.log.Warn("relays and probes are not served, for their address cannot be had", "address", at, "error", err)
	} else {
		h.warnOfBox(token, ln.Addr())
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

func (h *house) warnOfBox(token string, addr net.Addr) {
	a, ok := addr.(*net.TCPAddr)
	switch {
	case token == "" && ok && !a.IP.IsLoopback():
		h.log.Warn("everybody who reaches this address may run programs here: set LANGBOT_BOX_CONTROL_TOKEN", "address", addr.String())
	case token == "":
		h.log.Warn("there is no control token, so only this machine is served, and every user of it may run programs here: set LANGBOT_BOX_CONTROL_TOKEN")
	}
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

// ended tells when the door is closed by itself; nil never is.
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

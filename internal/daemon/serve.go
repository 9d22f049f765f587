//go:build linux || darwin || windows

package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/rulefile"
)

// shutdownTimeout bounds how long requests in progress may take to end.
const shutdownTimeout = 20 * time.Second

// Run is the daemon: it serves until ctx ends, and leaves its sandboxes running
// for the next one to find.
func Run(ctx context.Context, cfg Config) (err error) {
	ignorePipes()
	h, err := build(ctx, cfg, false)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		err = errors.Join(err, h.close(closing))
	}()
	listeners, listen, err := h.openListeners(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer listeners.close()
	token, err := h.token(cfg.Token, listen)
	if err != nil {
		return err
	}
	certificate, err := openCertificate(cfg.TLSCert, cfg.TLSKey, h.log)
	if err != nil {
		return err
	}
	e2b, err := h.openE2B(ctx, cfg, listeners, token, certificate)
	if err != nil {
		return err
	}
	server, err := h.server(cfg, listeners, token, certificate, e2b.also())
	if err != nil {
		return errors.Join(err, e2b.close())
	}
	status := h.core.Status(ctx, core.Caller{Operator: true})
	h.log.Info("serving", "listen", listen, "home", h.home.dir, "engine", status.Engine.Name, "available", status.Available, "reason", status.Engine.Reason)

	box, err := h.openBox(ctx, cfg)
	if err != nil {
		return errors.Join(err, e2b.close())
	}
	ports, err := h.openPorts(ctx, cfg.Ingress)
	if err != nil {
		return errors.Join(err, e2b.close(), box.close(ctx))
	}
	defer ports.close()
	served := make(chan error, len(listeners))
	var wg sync.WaitGroup
	defer h.followRules(ctx)()
	gone, stopWatch := h.watchHome(ctx)
	defer stopWatch()
	for _, d := range listeners {
		wg.Go(func() { served <- server.Serve(d) })
	}
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-box.ended():
	case err = <-e2b.ended():
	case err = <-ports.ended():
	case err = <-gone:
		h.log.Error("end with the home", "error", err)
		h.manager.Homeless()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	ports.close()
	err = errors.Join(err, box.close(closing), e2b.close(), server.Shutdown(closing))
	wg.Wait()
	return err
}

// server makes what serves the listeners.
func (h *app) server(cfg Config, listeners listeners, token string, certificate *certificate, also httpapi.Also) (*httpapi.Server, error) {
	o := httpapi.Options{
		Core: httpapi.FromCore(h.core), Version: cfg.Version, Logger: h.log, Redact: h.secrets.Redact, Answered: h.core.Answered,
		Deadlines: cfg.Deadlines, Token: token, Also: also,
		Hosts: append(h.ownNames(cfg.Listen), cfg.Hosts...), Origins: cfg.Origins,
	}
	if certificate != nil {
		o.Certificate = certificate.get
	} else {
		h.warnOfClearText(listeners)
	}
	return httpapi.New(o)
}

// watchHome sends the error that says that the home is gone, until stop has returned.
func (h *app) watchHome(ctx context.Context) (gone <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.home.watch(ctx); err != nil {
			found <- err
		}
	})
	return found, func() {
		cancel()
		wg.Wait()
	}
}

// followRules keeps the rules in force the same as the policy file, until stop has
// returned. A HUP signal makes it look at once.
func (h *app) followRules(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	hup := make(chan os.Signal, 1)
	notifyReload(hup)
	inForce := h.rules
	f := &rulefile.Follower{
		File: h.ruleFile, Began: h.began, Reject: h.core.RejectRules, Restored: h.core.RestoreRules, Logger: h.log,
		Use: func(ctx context.Context, rules rules.Rules, digest string) error {
			if err := h.core.UseRules(ctx, rules, digest); err != nil {
				return err
			}
			if later := policy.AtStart(inForce, rules); len(later) > 0 {
				h.log.Warn("some rules that changed take effect when the daemon is started again", "keys", later)
			}
			h.useSecrets(ctx, rules)
			inForce = rules
			return nil
		},
	}
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx, hup) })
	return func() {
		signal.Stop(hup)
		cancel()
		wg.Wait()
	}
}

func listenAt(ctx context.Context, addr string) (net.Listener, error) {
	wrong := func(why string) error {
		return api.Invalid("listen", "cannot listen at %q: %s", addr, why).
			WithHint("write unix:///path/to/socket or tcp://127.0.0.1:7070")
	}
	switch network, rest, _ := strings.Cut(addr, "://"); {
	case network == "unix" && isSocketPath(rest):
		return listenUnix(ctx, socketPath(rest))
	case network == "tcp":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return nil, wrong("a TCP address is host:port")
		}
		ln, err := net.Listen("tcp", rest)
		if err != nil {
			return nil, api.Errorf(api.CodeUnavailable, "cannot listen at %s: %w", addr, err)
		}
		return ln, nil
	}
	return nil, wrong("it is neither a unix socket nor a TCP address")
}

// listenUnix makes a socket that only its owner can connect to. One that a dead
// daemon left is replaced; a living daemon's, or anything else, is not.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != fs.ModeSocket {
			return nil, api.Invalid("listen", "%s exists and is no socket", path).WithHint("name a path that is free")
		}
		lives := false
		patiently(ctx, func() bool {
			c, err := net.Dial("unix", path)
			if lives = err == nil; lives {
				c.Close()
			}
			return lives
		})
		if lives {
			return nil, api.Errorf(api.CodeState, "another daemon listens at %s", path).
				WithHint("stop it, or choose another address with --listen")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
	}
	ln, err := listenPrivate(ctx, path)
	if err != nil {
		return nil, api.Errorf(api.CodeUnavailable, "cannot listen at %s: %w", path, err)
	}
	made, err := os.Lstat(path)
	socket, ok := ln.(*net.UnixListener)
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("listen at %s: %T: %w", path, ln, cmp.Or(err, errors.ErrUnsupported)), ln.Close())
	}
	return &socketListener{UnixListener: socket, path: path, made: made}, nil
}

// socketListener is a unix socket whose Close leaves the file of another daemon in place,
// which listens at the same path since the home was replaced.
type socketListener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

// Close ends the listener, and removes its file where the system does that and it is still
// its own. It may be called again.
func (l *socketListener) Close() error {
	if now, err := os.Lstat(l.path); err != nil || !os.SameFile(l.made, now) {
		l.SetUnlinkOnClose(false)
	}
	return l.UnixListener.Close()
}

// token is what TCP callers must show: the given one, or the one in the home,
// which is made when it is first needed.
func (h *app) token(given string, listen []string) (string, error) {
	needed := false
	for _, addr := range listen {
		needed = needed || strings.HasPrefix(addr, "tcp://")
	}
	if given != "" || !needed {
		return given, nil
	}
	root, err := os.OpenRoot(h.home.dir)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer root.Close()
	data, err := root.ReadFile("token")
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(rand.Text() + rand.Text())
		err = hostfile.Replace(root, "token", append(data, '\n'))
		h.log.Info("made a token for TCP callers", "file", h.home.path("token"))
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// InProcess is a core inside this process, whose sandboxes die with it.
type InProcess struct {
	app      *app
	server   *httpapi.Server
	listener *memoryListener
	wg       sync.WaitGroup
}

// Begin starts a core in this process. Its caller is the operator.
func Begin(ctx context.Context, cfg Config) (*InProcess, error) {
	h, err := build(ctx, cfg, true)
	if err != nil {
		return nil, err
	}
	server, err := httpapi.New(httpapi.Options{Core: httpapi.FromCore(h.core), Version: cfg.Version, Logger: h.log, Redact: h.secrets.Redact, Deadlines: cfg.Deadlines})
	if err != nil {
		return nil, errors.Join(err, h.close(ctx))
	}
	in := &InProcess{app: h, server: server, listener: newMemoryListener()}
	in.wg.Go(func() {
		if err := server.ServeAs(in.listener, core.InProcessCaller(os.Getuid())); err != nil {
			h.log.Error("serve in process", "error", err)
		}
	})
	return in, nil
}

// Dial connects to the core, whatever the address.
func (in *InProcess) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return in.listener.dial(ctx)
}

// Close removes every sandbox and ends the core.
func (in *InProcess) Close(ctx context.Context) error {
	err := in.server.Shutdown(ctx)
	in.wg.Wait()
	return errors.Join(err, in.app.close(ctx))
}

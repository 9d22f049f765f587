package cli

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// teardownTimeout bounds the end of an in-process core.
const teardownTimeout = 30 * time.Second

// connection is a client and how it was come by.
type connection struct {
	*client.Client
	// inProcess: there is no daemon; what is made ends with this process.
	inProcess bool
	// close ends the connection, and the core where it is in this process.
	close func() error
}

// homeDir is the home that the flag, the environment or the platform names.
func (a *app) homeDir() string {
	if a.home != "" {
		return a.home
	}
	// The first is the daemon's own setting, which goes before the older name.
	for _, name := range []string{"CLOCHE__HOME", client.EnvHome} {
		if h := a.getenv(name); h != "" {
			return h
		}
	}
	return client.DefaultHome()
}

// explicitHost is the daemon that the caller named, or "".
func (a *app) explicitHost() string {
	if a.host != "" {
		return a.host
	}
	return a.getenv(client.EnvHost)
}

// defaultSocket is where the daemon of the home listens.
func (a *app) defaultSocket() (string, error) {
	home, err := filepath.Abs(a.homeDir())
	if err != nil {
		return "", api.Invalid("home", "home %s: %w", terminal.Printable(a.homeDir()), err)
	}
	return filepath.Join(home, client.SocketName), nil
}

// daemon connects to the daemon, which must be there.
func (a *app) daemon() (*connection, error) {
	if host := a.explicitHost(); host != "" {
		return a.dial(host)
	}
	socket, err := a.defaultSocket()
	if err != nil {
		return nil, err
	}
	absent, err := isUnserved(socket)
	if err != nil {
		return nil, err
	}
	if absent {
		return nil, api.Errorf(api.CodeUnavailable, "no daemon listens at %s", terminal.Printable(socket)).WithHint("%s", a.startHint())
	}
	return a.dial("unix://" + filepath.ToSlash(socket))
}

// daemonOrNone is a client of the daemon, whether or not there is one.
func (a *app) daemonOrNone() (*connection, error) {
	if host := a.explicitHost(); host != "" {
		return a.dial(host)
	}
	socket, err := a.defaultSocket()
	if err != nil {
		return nil, err
	}
	return a.dial("unix://" + filepath.ToSlash(socket))
}

// startHint says how to get a daemon.
func (a *app) startHint() string {
	if a.env.Serve == nil {
		return `start one on a Linux machine with "cloche serve", and name it with --host or CLOCHE_HOST`
	}
	if a.home != "" {
		return `start one with "cloche serve --home ` + terminal.Printable(a.home) + `", or name another with --host or CLOCHE_HOST`
	}
	return `start one with "cloche serve", or name another with --host or CLOCHE_HOST`
}

// daemonOrInProcess connects to the daemon where one listens and otherwise
// starts the core in this process. A daemon that was named and cannot be
// reached, and one that is there and refuses, is an error: code must never run
// somewhere else than it was sent. Of a core of its own, sandbox says that one is
// going to be asked for.
func (a *app) daemonOrInProcess(ctx context.Context, sandbox bool) (*connection, error) {
	if host := a.explicitHost(); host != "" {
		return a.dial(host)
	}
	socket, err := a.defaultSocket()
	if err != nil {
		return nil, err
	}
	absent, err := isUnserved(socket)
	if err != nil {
		return nil, err
	}
	if !absent {
		return a.dial("unix://" + filepath.ToSlash(socket))
	}
	if a.env.InProcess == nil {
		return nil, api.Errorf(api.CodeUnsupported, "no daemon listens at %s, and sandboxes without one need Linux", terminal.Printable(socket)).
			WithHint(`start "cloche serve" on a Linux machine, and name it with --host or CLOCHE_HOST`)
	}
	c, stop, err := a.env.InProcess(ctx, a.homeDir(), sandbox)
	if err != nil {
		return nil, err
	}
	return &connection{Client: c, inProcess: true, close: func() error {
		// Whatever ended ctx, what it started must be gone before the process is.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
		defer cancel()
		return errors.Join(c.Close(), stop(ctx))
	}}, nil
}

func (a *app) dial(host string) (*connection, error) {
	silence, err := client.ParseSilence(a.getenv(client.EnvSilence))
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Options{
		Silence: silence, Host: host, Token: a.getenv(client.EnvToken), CAFile: a.getenv(client.EnvCAFile), UserAgent: "cloche-cli/" + a.env.Version,
		OnReconnect: func(_ error, wait time.Duration) {
			a.note("the connection to the daemon is lost; trying again in %v", wait.Round(time.Second))
		},
	})
	if err != nil {
		return nil, err
	}
	return &connection{Client: c, close: c.Close}, nil
}

// isUnserved reports whether the socket is missing or was left behind by a daemon that ended. A
// socket that refuses this user is an error.
func isUnserved(socket string) (bool, error) {
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return true, nil
	}
	conn, err := net.DialTimeout("unix", socket, 5*time.Second)
	switch {
	case err == nil:
		return false, conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, fs.ErrPermission):
		return false, api.Errorf(api.CodeUnauthenticated, "the daemon's socket %s refuses this user: %w", terminal.Printable(socket), err).
			WithHint("run as the user who started the daemon, or choose a home of your own with --home")
	}
	return false, api.Errorf(api.CodeUnavailable, "connect to the daemon's socket %s: %w", terminal.Printable(socket), err).
		WithHint("choose another home with --home, or name the daemon with --host")
}

// paths is how local paths in flags are read for this daemon.
func (a *app) paths() absolute {
	host := a.explicitHost()
	if host == "" || strings.HasPrefix(host, "unix://") {
		return absoluteHere
	}
	if u, err := url.Parse(host); err == nil {
		if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return absoluteHere
		}
	}
	return absoluteElsewhere
}

package command

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

// TeardownTimeout bounds the end of an in-process core.
const TeardownTimeout = 30 * time.Second

// Connection is a client and how it was come by.
type Connection struct {
	*client.Client
	// inProcess: there is no daemon; what is made ends with this process.
	inProcess bool
	// close ends the connection, and the core where it is in this process.
	Close func() error
}

// homeDir is the home that the flag, the environment or the platform names.
func (a *CLI) homeDir() string {
	if a.Home != "" {
		return a.Home
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
func (a *CLI) explicitHost() string {
	if a.Host != "" {
		return a.Host
	}
	return a.getenv(client.EnvHost)
}

// defaultSocket is where the daemon of the home listens.
func (a *CLI) defaultSocket() (string, error) {
	home, err := filepath.Abs(a.homeDir())
	if err != nil {
		return "", api.Invalid("home", "home %s: %w", terminal.Printable(a.homeDir()), err)
	}
	return filepath.Join(home, client.SocketName), nil
}

// Daemon connects to the daemon, which must be there.
func (a *CLI) Daemon() (*Connection, error) {
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

// DaemonOrNone is a client of the daemon, whether or not there is one.
func (a *CLI) DaemonOrNone() (*Connection, error) {
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
func (a *CLI) startHint() string {
	if a.Env.Serve == nil {
		return `start one on a Linux machine with "cloche serve", and name it with --host or CLOCHE_HOST`
	}
	if a.Home != "" {
		return `start one with "cloche serve --home ` + terminal.Printable(a.Home) + `", or name another with --host or CLOCHE_HOST`
	}
	return `start one with "cloche serve", or name another with --host or CLOCHE_HOST`
}

// DaemonOrInProcess connects to the daemon where one listens and otherwise
// starts the core in this process. A daemon that was named and cannot be
// reached, and one that is there and refuses, is an error: code must never run
// somewhere else than it was sent. Of a core of its own, sandbox says that one is
// going to be asked for.
func (a *CLI) DaemonOrInProcess(ctx context.Context, sandbox bool) (*Connection, error) {
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
	if a.Env.InProcess == nil {
		return nil, api.Errorf(api.CodeUnsupported, "no daemon listens at %s, and sandboxes without one need Linux", terminal.Printable(socket)).
			WithHint(`start "cloche serve" on a Linux machine, and name it with --host or CLOCHE_HOST`)
	}
	c, stop, err := a.Env.InProcess(ctx, a.homeDir(), sandbox)
	if err != nil {
		return nil, err
	}
	return &Connection{Client: c, inProcess: true, Close: func() error {
		// Whatever ended ctx, what it started must be gone before the process is.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), TeardownTimeout)
		defer cancel()
		return errors.Join(c.Close(), stop(ctx))
	}}, nil
}

func (a *CLI) dial(host string) (*Connection, error) {
	silence, err := client.ParseSilence(a.getenv(client.EnvSilence))
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Options{
		Silence: silence, Host: host, Token: a.getenv(client.EnvToken), CAFile: a.getenv(client.EnvCAFile), UserAgent: "cloche-cli/" + a.Env.Version,
		OnReconnect: func(_ error, wait time.Duration) {
			a.Note("the connection to the daemon is lost; trying again in %v", wait.Round(time.Second))
		},
	})
	if err != nil {
		return nil, err
	}
	return &Connection{Client: c, Close: c.Close}, nil
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

// Paths is how local paths in flags are read for this daemon.
func (a *CLI) Paths() Absolute {
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

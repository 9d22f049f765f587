//go:build linux || darwin || windows

package daemon

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

// listeners are what the daemon listens at.
type listeners []net.Listener

func (d listeners) close() {
	for _, ln := range d {
		ln.Close()
	}
}

// tcp returns the first listener at a TCP address, or nil.
func (d listeners) tcp() net.Listener {
	for _, ln := range d {
		if ln.Addr().Network() == "tcp" {
			return ln
		}
	}
	return nil
}

// openListeners listens at the socket in the home and at every address that is named, or at
// none. It returns the addresses too. Where another address is named, a home that can
// hold no socket is no error.
func (h *app) openListeners(ctx context.Context, named []string) (open listeners, listen []string, err error) {
	own := "unix://" + h.home.path("cloche.sock")
	for i, addr := range append([]string{own}, named...) {
		if i > 0 && sameSocket(own, addr) {
			continue
		}
		ln, err := listenAt(ctx, addr)
		if i == 0 && len(named) > 0 && api.CodeOf(err) == api.CodeUnavailable {
			h.log.Warn("there is no socket in the home", "error", err)
			continue
		}
		if err != nil {
			open.close()
			return nil, nil, err
		}
		open, listen = append(open, ln), append(listen, addr)
	}
	h.listeners.Store(&open)
	return open, listen, nil
}

// sameSocket reports whether two addresses are of one unix socket.
func sameSocket(a, b string) bool {
	_, a, _ = strings.Cut(a, "://")
	network, b, _ := strings.Cut(b, "://")
	if network != "unix" || !isSocketPath(b) {
		return false
	}
	a, b = socketPath(a), socketPath(b)
	in, err := os.Stat(filepath.Dir(a))
	other, err2 := os.Stat(filepath.Dir(b))
	return err == nil && err2 == nil && os.SameFile(in, other) && filepath.Base(a) == filepath.Base(b)
}

// ownNames are the names by which this machine's TCP addresses may be called without
// more settings: its own, as the system and its file of hosts have them, and those in
// the addresses. No other machine is asked.
func (h *app) ownNames(listen []string) []string {
	var out []string
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		out = append(aliases(hostsFile(), name), name, short)
	}
	for _, addr := range listen {
		network, rest, _ := strings.Cut(addr, "://")
		if name, _, err := net.SplitHostPort(rest); err == nil && network == "tcp" {
			out = append(out, name)
		}
	}
	return slices.DeleteFunc(out, func(name string) bool { return strings.HasPrefix(name, "*") || !httpapi.ValidHost(name) })
}

// maxHosts is how much of the file of hosts is read.
const maxHosts = 1 << 20

// aliases are the longer forms of a machine's name in a file of hosts: names that begin
// with it and a dot, on a line that has it too.
func aliases(file, name string) []string {
	f, err := os.OpenFile(file, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHosts))
	if err != nil {
		return nil
	}
	var out []string
	short, _, _ := strings.Cut(strings.ToLower(name), ".")
	for line := range strings.Lines(strings.ToLower(string(data))) {
		line, _, _ = strings.Cut(line, "#")
		names := strings.Fields(line)
		if !slices.Contains(names, strings.ToLower(name)) {
			continue
		}
		for _, n := range names[1:] {
			if strings.HasPrefix(n, short+".") {
				out = append(out, n)
			}
		}
	}
	return out
}

// socketDirs are the directories of the unix sockets of this daemon and of its engines, except for the
// socket in the home: by the names in the settings, and with their symlinks resolved.
func socketDirs(cfg Config) []string {
	addresses := slices.Concat(cfg.Listen,
		docker.Hosts(docker.Docker, cfg.Docker.Host, os.Getenv), docker.Hosts(docker.Podman, cfg.Podman.Host, os.Getenv))
	var out []string
	for _, addr := range addresses {
		network, rest, _ := strings.Cut(addr, "://")
		if network != "unix" || !isSocketPath(rest) {
			continue
		}
		path := socketPath(rest)
		out = append(out, filepath.Dir(path))
		if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			out = append(out, real)
		}
		// A socket of another daemon may be reached by a symlink of its own.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			out = append(out, filepath.Dir(real))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isListener says whether an address leads to this daemon's own API, which is not a service
// for a sandbox. A listener at every address is one at any.
func (h *app) isListener(to netip.AddrPort) bool {
	open := h.listeners.Load()
	return open != nil && open.at(to) || h.ports.Load().listensAt(to)
}

// at says whether one of the listeners is at an address.
func (d listeners) at(to netip.AddrPort) bool {
	for _, ln := range d {
		at, ok := ln.Addr().(*net.TCPAddr)
		if !ok || at.Port != int(to.Port()) {
			continue
		}
		if own := at.AddrPort().Addr().Unmap(); own.IsUnspecified() || own == to.Addr().Unmap() {
			return true
		}
	}
	return false
}

// warnOfClearText says what a TCP address that others can reach means.
func (h *app) warnOfClearText(open listeners) {
	for _, ln := range open {
		if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			h.log.Warn("tokens cross the network in clear text: set tls.cert and tls.key, or put TLS in front of this address", "listen", ln.Addr().String())
		}
	}
}

//go:build linux || darwin || windows

package daemon

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/engine/docker"
)

// doors are listeners.
type doors []net.Listener

func (d doors) close() {
	for _, ln := range d {
		ln.Close()
	}
}

// openDoors listens at every address, or at none.
func (h *house) openDoors(ctx context.Context, listen []string) (doors, error) {
	var open doors
	for _, addr := range listen {
		ln, err := listenAt(ctx, addr)
		if err != nil {
			open.close()
			return nil, err
		}
		open = append(open, ln)
	}
	h.doors.Store(&open)
	return open, nil
}

// socketDirs are the directories of the unix sockets by which this daemon and those of
// its engines are called, but for the socket in the home, by the names they are given and
// by where those lead.
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

// isDoor says whether an address leads to this daemon's own API, which is no service
// to lend to a sandbox. A door at every address is one at any.
func (h *house) isDoor(to netip.AddrPort) bool {
	open := h.doors.Load()
	if open == nil {
		return false
	}
	for _, ln := range *open {
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
func (h *house) warnOfClearText(open doors) {
	for _, ln := range open {
		if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			h.log.Warn("tokens cross the network in clear text: put TLS in front of this address", "listen", ln.Addr().String())
		}
	}
}

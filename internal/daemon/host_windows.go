package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// endpointSockets is how many connections endpoints may have to their targets. Windows
// bounds what a process may have open by its memory alone.
func endpointSockets() int64 { return 8192 }

// connPair makes two ends of a connection that no other process can reach.
func connPair() (ours, theirs net.Conn, err error) {
	ours, theirs = net.Pipe()
	return ours, theirs, nil
}

// ignorePipes has nothing to ignore: writing to a pipe without a reader fails, which is
// all.
func ignorePipes() {}

// noWait: what a path leads to is opened at once.
const noWait = 0

// hostsFile is where this machine keeps names of its own.
func hostsFile() string {
	return filepath.Join(os.Getenv("SystemRoot"), "System32", "drivers", "etc", "hosts")
}

// notifyReload: there is no signal for it; the daemon checks the policy file anyway.
func notifyReload(chan<- os.Signal) {}

// isSocketPath tells what follows unix:// in an address: a path with its drive.
func isSocketPath(p string) bool { return filepath.IsAbs(socketPath(p)) }

// socketPath is the path in an address, in which a slash may stand before the drive.
func socketPath(p string) string {
	if filepath.VolumeName(p) == "" {
		p = strings.TrimPrefix(p, "/")
	}
	return filepath.Clean(filepath.FromSlash(p))
}

// listenPrivate makes a socket that only its owner can connect to. Windows does not say
// who is at its other end, so only its owner may enter its directory.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := hostfile.Guarded(dir); err != nil {
		return nil, api.Errorf(api.CodeDenied, "the directory %s %w, and every process that connects would count as its owner", dir.Name(), err).
			WithHint("listen in a directory that only you can enter, or at tcp://127.0.0.1:7070, where a token is shown")
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("%w (unix sockets need Windows 10 1803: tcp://127.0.0.1:7070 works everywhere)", err)
	}
	return ln, nil
}

//go:build linux || darwin

package daemon

import (
	"errors"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// endpointSockets is how many connections endpoints may have to their targets: half of
// what this process may have open, so that sandboxes can be made and files be written
// whatever goes through them.
func endpointSockets() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512 // half of the least that systems give
	}
	return int64(min(limit.Cur, 1<<20) / 2)
}

// connPair makes two ends of a connection: a socket pair, which unlike net.Pipe has
// buffers and deadlines of the kernel's.
func connPair() (ours, theirs net.Conn, err error) {
	fds, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	ours, err1 := fileConn(fds[0])
	theirs, err2 := fileConn(fds[1])
	if err := errors.Join(err1, err2); err != nil {
		for _, c := range []net.Conn{ours, theirs} {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return ours, theirs, nil
}

func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "in-process")
	defer f.Close() // FileConn has its own copy
	return net.FileConn(f)
}

// ignorePipes keeps a log whose reader has gone from ending the daemon: writing to it
// fails, which is all.
func ignorePipes() { signal.Ignore(syscall.SIGPIPE) }

// noWait has a FIFO opened that has no writer.
const noWait = unix.O_NONBLOCK | unix.O_NOCTTY

// hostsFile is where this machine keeps names of its own.
func hostsFile() string { return "/etc/hosts" }

// notifyReload has c get what an operator sends to have the rules read again.
func notifyReload(c chan<- os.Signal) { signal.Notify(c, syscall.SIGHUP) }

// isSocketPath tells what follows unix:// in an address.
func isSocketPath(p string) bool { return p != "" && p[0] == '/' }

// socketPath is the path in an address.
func socketPath(p string) string { return p }

package freeport

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// attempts is how many ports are tried for one that is free for both families.
const attempts = 100

// Free returns a port of the loopback without a listener, which no other caller gets
// until the test ends: a socket that never listens is bound to it. A program can listen
// there that asks for SO_REUSEADDR, as Go, Python and Node do by themselves.
func Free(t testing.TB) int {
	t.Helper()
	for range attempts {
		v4, port, err := bind(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		if err != nil {
			t.Fatalf("find a free port: %v", err)
		}
		v6, _, err := bind(&unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}})
		if errors.Is(err, unix.EADDRINUSE) {
			_ = unix.Close(v4)
			continue
		}
		t.Cleanup(func() {
			_ = unix.Close(v4)
			if err == nil { // otherwise there is no IPv6
				_ = unix.Close(v6)
			}
		})
		return port
	}
	t.Fatalf("none of %d ports is free", attempts)
	return 0
}

// bind returns a socket at an address, and the port that it has.
func bind(addr unix.Sockaddr) (fd, port int, err error) {
	family := unix.AF_INET
	if _, ok := addr.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	var got unix.Sockaddr
	if err == nil {
		got, err = unix.Getsockname(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	if in, ok := got.(*unix.SockaddrInet4); ok {
		return fd, in.Port, nil
	}
	return fd, got.(*unix.SockaddrInet6).Port, nil
}

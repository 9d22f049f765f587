package freeport_test

import (
	"errors"
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/test/freeport"
)

// TestFree: a port is free for a program that names it, stays unused meanwhile, and is given once.
func TestFree(t *testing.T) {
	taken := map[int]bool{}
	for range 200 {
		port := freeport.Free(t)
		if taken[port] {
			t.Errorf("port %d was given twice", port)
		}
		taken[port] = true
	}
	for port := range taken {
		for _, host := range []string{"127.0.0.1", "::1"} {
			addr := net.JoinHostPort(host, strconv.Itoa(port))
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Errorf("somebody listens at %s", addr)
			}
			for range 2 { // as a program that is started again
				ln, err := net.Listen("tcp", addr)
				if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
					continue // no IPv6
				}
				if err != nil {
					t.Fatal(err)
				}
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
				ln.Close()
			}
		}
	}
	// Who names no port gets none of them.
	for range 1000 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if port := ln.Addr().(*net.TCPAddr).Port; taken[port] {
			t.Fatalf("port %d was given to another program", port)
		}
	}
}

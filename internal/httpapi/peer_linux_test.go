package httpapi_test

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/longtest"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// wire is the loopback interface of a network of its own, which can be cut.
func wire(t *testing.T) (set func(up bool)) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("needs a network namespace: it cuts a cable: ", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(up bool) {
		t.Helper()
		var ifr struct {
			name  [unix.IFNAMSIZ]byte
			flags uint16
			_     [22]byte
		}
		copy(ifr.name[:], "lo")
		if up {
			ifr.flags = unix.IFF_UP
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
			t.Fatal(errno)
		}
	}
}

// TestVanishedPeers: a machine that is gone from the network says no goodbye.
// The server notices, ends what was its, and keeps a peer that only does not
// read.
func TestVanishedPeers(t *testing.T) {
	longtest.Skip(t, "it waits for silent peers")
	set := wire(t)
	set(true)
	c := mockcore.New()
	s, err := httpapi.New(httpapi.Options{Core: c, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	s.Hasten(time.Second, 3*time.Second)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	conns := make(chan net.Conn, 8)
	there, err := client.New(client.Options{
		Host: "tcp://" + ln.Addr().String(), Token: token, NoReconnect: true,
		Dial: func(context.Context, string, string) (net.Conn, error) { return <-conns, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range cap(conns) { // only this thread is in that network
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns <- conn
	}
	st, err := there.RunStream(t.Context(), api.RunRequest{Exec: api.ExecRequest{Argv: []string{"sleep"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	// st has no reader, and its system answers: it is kept for longer than one
	// that is gone would be.
	held, err := there.Hold(t.Context(), api.SandboxSpec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	select {
	case <-held.Done():
		t.Fatalf("a peer that is there was left: %v", held.Err())
	case <-time.After(5 * time.Second):
	}
	if n := c.Live(); n != 2 {
		t.Fatalf("%d sandboxes live beside peers that are there, want 2", n)
	}
	set(false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.Await(ctx, func() bool { return c.Live() == 0 }); err != nil {
		t.Errorf("%d sandboxes live on for peers that vanished", c.Live())
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

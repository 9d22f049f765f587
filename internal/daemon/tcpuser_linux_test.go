package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// dialAs connects as another user of the filesystem, whom the kernel takes for the owner
// of the socket.
func dialAs(uid int, to string) (net.Conn, error) {
	made := make(chan net.Conn, 1)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		addr := netip.MustParseAddrPort(to)
		if _, err := unix.SetfsuidRetUid(uid); err != nil {
			failed <- err
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
		}
		if err != nil {
			failed <- err
			return
		}
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			failed <- err
			return
		}
		made <- c
	}()
	select {
	case c := <-made:
		return c, nil
	case err := <-failed:
		return nil, err
	}
}

// TestSameUser: a connection belongs to its own user and to root only; one whose
// other end is closed belongs to no user, though the kernel tells its user as 0.
func TestSameUser(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"} {
		t.Run(at, func(t *testing.T) {
			ln, err := net.Listen("tcp", at)
			if err != nil {
				t.Skip("this machine has no such loopback address: " + err.Error())
			}
			defer ln.Close()
			dial := func(dial func() (net.Conn, error)) (ours, theirs net.Conn) {
				t.Helper()
				theirs, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				if ours, err = ln.Accept(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
				return ours, theirs
			}
			check := func(c net.Conn) error { return sameUser(c.LocalAddr().String(), c.RemoteAddr().String()) }
			ours, theirs := dial(func() (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) })
			if err := check(ours); err != nil {
				t.Errorf("this user's own: %v", err)
			}
			// The other end's own view is of another connection, which is ours.
			if err := sameUser(theirs.LocalAddr().String(), "127.0.0.1:1"); err == nil {
				t.Error("a connection that there is not is somebody's")
			}
			if err := theirs.Close(); err != nil {
				t.Fatal(err)
			}
			if err := check(ours); err == nil {
				t.Error("a connection that its owner closed is somebody's")
			}
			if os.Geteuid() != 0 || at != "127.0.0.1:0" {
				return
			}
			ours, _ = dial(func() (net.Conn, error) { return dialAs(12345, ln.Addr().String()) })
			if err := check(ours); err == nil || err.Error() != "it belongs to user 12345" {
				t.Errorf("another user's: %v", err)
			}
		})
	}
	for _, bad := range []string{"", "@", "/run/x", "localhost:80"} {
		if sameUser("127.0.0.1:80", bad) == nil || sameUser(bad, "127.0.0.1:80") == nil {
			t.Errorf("%q is an address", bad)
		}
	}
}

func TestTCPLine(t *testing.T) {
	from, to := netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.2:80")
	const format = "   1: %s %s %s 00000000:00000000 00:00000000 00000000  1000        0 %s 1 0000000000000000 20 4 30 10 -1"
	for name, c := range map[string]struct {
		local, remote, state, inode string
		want                        bool
	}{
		"it":                {"0100007F:1F90", "0200007F:0050", "01", "77", true},
		"mapped":            {"0000000000000000FFFF00000100007F:1F90", "0000000000000000FFFF00000200007F:0050", "01", "77", true},
		"closed":            {"0100007F:1F90", "0200007F:0050", "01", "0", false},
		"closing":           {"0100007F:1F90", "0200007F:0050", "04", "77", false},
		"the other way":     {"0200007F:0050", "0100007F:1F90", "01", "77", false},
		"another port":      {"0100007F:1F91", "0200007F:0050", "01", "77", false},
		"another address":   {"0100007F:1F90", "0300007F:0050", "01", "77", false},
		"a wrong address":   {"0100007:1F90", "0200007F:0050", "01", "77", false},
		"a wrong port":      {"0100007F:1F90F", "0200007F:0050", "01", "77", false},
		"an address of six": {"0100007F0100:1F90", "0200007F:0050", "01", "77", false},
	} {
		uid, ok := tcpLine(fmt.Sprintf(format, c.local, c.remote, c.state, c.inode), from, to)
		if ok != c.want || ok && uid != 1000 {
			t.Errorf("%s: %d %t", name, uid, ok)
		}
	}
	if _, ok := tcpLine("  sl  local_address rem_address   st", from, to); ok {
		t.Error("the header is a socket")
	}
}

// TestBoxListensForThisMachine: without a token an address that others reach is refused.
func TestBoxListensForThisMachine(t *testing.T) {
	for _, c := range []struct {
		at, token string
		want      bool
	}{{"127.0.0.1:0", "", true}, {"[::1]:0", "", true}, {"0.0.0.0:0", "", false}, {"[::]:0", "", false}, {"0.0.0.0:0", "t", true}} {
		ln, err := listenForBox(c.at, c.token)
		if err == nil {
			_ = ln.Close()
		}
		if c.want != (err == nil) {
			t.Errorf("%s with the token %q: %v", c.at, c.token, err)
		}
	}
}

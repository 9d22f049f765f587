//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
)

// outletPipe is a pipe with an outlet at its end.
func outletPipe(t *testing.T, pipe bool) (*outlet, *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	o, w := newOutlet(os.NewFile(uintptr(fds[0]), "pipe"), pipe), os.NewFile(uintptr(fds[1]), "pipe")
	t.Cleanup(func() {
		o.Close()
		w.Close()
	})
	return o, w
}

// hurry makes all that comes count as come within floodTime, however slow the machine is.
func hurry(o *outlet) { o.since = time.Now().Add(time.Hour) }

// TestOutletFlood reads a flood, what comes in a while behind it, and another
// flood, to the end.
func TestOutletFlood(t *testing.T) {
	for name, pipe := range map[string]bool{"pipe": true, "terminal": false} {
		t.Run(name, func(t *testing.T) {
			o, w := outletPipe(t, pipe)
			hurry(o)
			want := make([]byte, 4*floodBytes)
			for i := range want {
				want[i] = byte(i * 31 >> 3)
			}
			calm := make(chan struct{})
			go func() {
				defer w.Close()
				half := len(want) / 2
				for _, part := range [][]byte{want[:half], want[half : half+5], want[half+5:]} {
					for len(part) > 0 {
						n, err := w.Write(part[:min(8<<10, len(part))])
						if err != nil {
							t.Error(err)
							return
						}
						part = part[n:]
					}
					<-calm
				}
			}()
			var got []byte
			floods, in := 0, false
			buf := make([]byte, blockBytes)
			for {
				if now := o.f == nil; now != in {
					if in = now; in {
						floods++
					}
				}
				n, err := o.Read(buf)
				got = append(got, buf[:n]...)
				if n > 0 && (len(got) == len(want)/2 || len(got) == len(want)/2+5 || len(got) == len(want)) {
					calm <- struct{}{}
				}
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes came, not the %d that were written", len(got), len(want))
			}
			if flooded := floods > 0; flooded != pipe {
				t.Errorf("%d floods were seen", floods)
			}
		})
	}
}

// TestOutletDeadline: a deadline that is set in a flood holds when that is over.
func TestOutletDeadline(t *testing.T) {
	o, w := outletPipe(t, true)
	hurry(o)
	buf := make([]byte, blockBytes)
	for o.f != nil {
		if _, err := w.Write(make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := o.Read(buf)
		if os.IsTimeout(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := o.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if n, err := o.Read(buf); n != 4 || err != nil {
		t.Errorf("behind the deadline %d bytes came, %v", n, err)
	}
}

// TestBornConnections: an agent that was given two sockets serves both.
func TestBornConnections(t *testing.T) {
	var ours [2]net.Conn
	var theirs [2]*os.File
	for i := range ours {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		mine := os.NewFile(uintptr(fds[0]), "ours")
		theirs[i] = os.NewFile(uintptr(fds[1]), "theirs")
		if ours[i], err = net.FileConn(mine); err != nil {
			t.Fatal(err)
		}
		mine.Close()
	}
	in := boot(t, func(_ *agent.Config, cmd *exec.Cmd) { cmd.ExtraFiles = theirs[:] })
	for i, conn := range ours {
		theirs[i].Close()
		c, err := agent.Connect(within(t, time.Minute), conn, in.token)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		if _, err := c.Processes(within(t, time.Minute)); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

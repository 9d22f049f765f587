//go:build linux

package guest

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
)

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

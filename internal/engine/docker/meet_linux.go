package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/inner"
	"github.com/cloche-dev/cloche/internal/engine/tap"
)

// ownKernel are runtimes whose containers' network is the namespace that this
// machine sees. Others take what is there when they begin, and have it elsewhere.
var ownKernel = []string{"runc", "io.containerd.runc.v2", "crun"}

// egress says whether a container of the daemon can have a link: the device is made
// by us, in the container's network namespace.
func (e *Engine) egress(d *daemon, info system.Info) api.Enforcement {
	no := func(why string) api.Enforcement { return api.Enforcement{Reason: why} }
	path, isSocket := strings.CutPrefix(d.host, "unix://")
	switch runtime := e.runtime(info); {
	case !isSocket || !isHere(d.host, info):
		return no("the daemon is on another machine, whose network namespaces cannot be entered from here")
	case !slices.Contains(ownKernel, runtime):
		return no("containers of the runtime " + strconv.Quote(runtime) + " do not have their network in a namespace of this machine's kernel")
	case !mayEnter():
		return no("Cloche may not enter the containers' network namespaces: it needs root on this machine")
	case unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil:
		return no("Cloche may not open /dev/net/tun")
	case !seesProcesses(path):
		return no("the daemon's processes cannot be seen from here: Cloche and the daemon must see the same process numbers")
	}
	return api.Enforcement{OK: true}
}

// mayEnter says whether this process has the capabilities to enter namespaces and to
// make devices there.
func mayEnter() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	const want = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_PTRACE
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&want == want
}

// seesProcesses says whether who listens at a socket has a number here.
func seesProcesses(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	defer conn.Close()
	pid, err := peer(conn.(*net.UnixConn))
	return err == nil && pid > 0
}

// peer is the process at the other end of a socket.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, cerr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// meeting is a socket in the network namespace of a container, at which its first
// process fetches the link. No other process is in that namespace yet.
type meeting struct {
	ln    *net.UnixListener
	pid   int
	netns *os.File
}

// meet makes the socket of a container that has been started.
func (c *creation) meet(ctx context.Context, id string) (*meeting, error) {
	answer, err := c.d.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	m := &meeting{}
	if answer.Container.State == nil || answer.Container.State.Pid <= 0 {
		return nil, errAgentDied
	}
	m.pid = answer.Container.State.Pid
	if m.netns, err = os.Open("/proc/" + strconv.Itoa(m.pid) + "/ns/net"); err != nil {
		return nil, fmt.Errorf("open the container's network namespace: %w", err)
	}
	err = tap.In(int(m.netns.Fd()), func() (err error) {
		m.ln, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: inner.Meeting, Net: "unixpacket"})
		return err
	})
	if err != nil {
		m.netns.Close()
		return nil, fmt.Errorf("listen in the container's network namespace: %w", err)
	}
	return m, nil
}

// close ends what hand waits for.
func (m *meeting) close() {
	m.ln.Close()
	m.netns.Close()
}

// hand makes the device and gives it to the container with both ends of the link.
// That it is the container who asks proves that the namespace is its own: its number
// could be another process's here.
func (m *meeting) hand(l *engine.Link) error {
	if err := m.ln.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	conn, err := m.ln.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the container to fetch its link: %w", err)
	}
	defer conn.Close()
	if pid, err := peer(conn); err != nil || pid != m.pid {
		return errors.Join(err, fmt.Errorf("process %d fetches the link of process %d", pid, m.pid))
	}
	var device *os.File
	err = tap.In(int(m.netns.Fd()), func() (err error) {
		device, err = tap.Make(l)
		return err
	})
	if err != nil {
		return err
	}
	defer device.Close()
	raw := [inner.MeetingFiles]int{int(device.Fd())}
	for i, f := range []*os.File{l.Guest, l.Far} {
		if raw[i+1], err = dup(f); err != nil {
			return err
		}
		defer unix.Close(raw[i+1])
	}
	if _, _, err = conn.WriteMsgUnix([]byte{inner.Connected}, unix.UnixRights(raw[:]...), nil); err != nil {
		return fmt.Errorf("hand over the link: %w", err)
	}
	return nil
}

// dup is a descriptor of a file that stays as it is, which Fd would not leave it.
func dup(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var derr error
	err = raw.Control(func(own uintptr) { fd, derr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, derr)
}

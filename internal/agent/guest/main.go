//go:build linux

package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/guest/ports"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	configFD = 3
	readyFD  = 4
	// firstFD and spareFD may be connections that the engine has made already. The
	// first is used at once, the other one when it is needed.
	firstFD   = 5
	spareFD   = 6
	maxConfig = 64 << 10
	// minToken is the length of the shortest token, in bytes.
	minToken = 16
)

// Main is the agent's whole life: it reads its configuration from descriptor 3,
// says on descriptor 4 that it listens (one byte) or why it cannot (a line), and
// serves. It returns the status to exit with.
func Main() int { return serveAs(wire.Versions()) }

// serveAs is Main for an agent that speaks these versions of the protocol.
func serveAs(versions []int) int {
	a, ln, err := setUp(versions)
	if err != nil {
		_ = say("agent: " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")
		return 1
	}
	if err := say("\n"); err != nil {
		return 1
	}
	if err := a.serve(ln); err != nil {
		return 1
	}
	return 0
}

// say writes to descriptor 4 and closes it. It is written and read raw, as all that is
// done before that: the runtime's poller would ask the kernel three times as much.
func say(line string) error {
	_, err := unix.Write(readyFD, []byte(line))
	return errors.Join(err, unix.Close(readyFD))
}

// setUp does everything up to where the agent can be dialled.
func setUp(versions []int) (*Agent, net.Listener, error) {
	// The agent holds little and answers one host: a small heap matters more than
	// the collector's work.
	debug.SetGCPercent(50)
	unix.CloseOnExec(configFD)
	unix.CloseOnExec(readyFD)
	var b *base
	cfg, err := readConfig(func(early agent.Config) (err error) {
		warm()
		b, err = prepare(early)
		return err
	})
	if err == nil && b == nil {
		b, err = prepare(cfg)
	}
	if err != nil {
		return nil, nil, err
	}
	a, err := newAgent(cfg, versions, b)
	if err != nil {
		b.ln.Close()
		return nil, nil, err
	}
	return a, b.ln, nil
}

// base is the part of an agent that does not depend on its caller.
type base struct {
	cfg   agent.Config
	ln    net.Listener
	given bool // the engine made the listener
	first net.Conn
	spare net.Conn
	id    identity.Identity
	users *identity.Users
	procs *process.Manager
}

// prepare makes the base of an agent of a configuration, which may be an early one.
func prepare(cfg agent.Config) (*base, error) {
	b := &base{cfg: cfg}
	var err error
	if b.ln, err = givenListener(); err != nil {
		return nil, err
	}
	if b.given = b.ln != nil; !b.given {
		b.first, b.spare = bornConn(firstFD), bornConn(spareFD)
	}
	if cfg.OwnThreads {
		makeThreads(ownThreads)
	}
	for sig := unix.Signal(1); sig < 32; sig++ {
		if launcher.IgnoredSignals>>uint(sig)&1 != 0 {
			signal.Ignore(sig)
		}
	}
	if cfg.KernelGuardsInit {
		// Programs can send these, and the runtime ends the agent for them unless they are
		// asked for.
		signal.Notify(make(chan os.Signal, 1), unix.SIGABRT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF, unix.SIGIO, unix.SIGPWR)
		if err := ignoreGuarded(); err != nil {
			return nil, err
		}
	}
	if cfg.Hostname != "" {
		// Not everywhere allowed, and the engine may have done it.
		_ = unix.Sethostname([]byte(cfg.Hostname))
	}
	if !b.given {
		// The port is below 1024: before the agent is another user.
		if b.ln, err = listenLoopback(portOf(cfg)); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	if err := b.guard(); err != nil {
		b.ln.Close()
		return nil, err
	}
	return b, nil
}

// guard keeps the agent from its own processes, which it can start from then on.
func (b *base) guard() (err error) {
	cfg := b.cfg
	if b.id, err = identity.Harden(cfg.KernelGuardsInit, cfg.SingleUser, cfg.Confine); err != nil {
		return err
	}
	b.users = &identity.Users{Single: cfg.SingleUser, Normal: cfg.User, Adopts: cfg.SingleUser && b.id.UserNS >= 0}
	if !b.id.Privileged {
		b.users.Self = &identity.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: "/"}
	}
	b.procs, err = process.New(cfg, b.id, b.users, givenGroups(b.given), portOf(cfg))
	return err
}

// ignoreGuarded ignores guardedSignals, the runtime's handlers for faults included. A sender
// can give a signal a code of the kernel's, by rt_sigqueueinfo or for a descriptor, and the
// runtime ends the agent for what it then takes for a fault of its own. The default action
// is no guard: the kernel withholds a signal from a first process of a namespace only while
// the thread that it is sent to does not block it, and ends all of them otherwise. A real
// fault ends the agent as before, without a trace of the stack.
func ignoreGuarded() error {
	ignore := launcher.SigAction{launcher.SigIgnore}
	for sig := uintptr(1); sig <= launcher.LastSignal; sig++ {
		if uint64(launcher.GuardedSignals)>>sig&1 == 0 {
			continue
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0); errno != 0 {
			return os.NewSyscallError("rt_sigaction", errno)
		}
	}
	return nil
}

// ownThreads are as many as the agent needs when many calls wait for files.
const ownThreads = 32

// makeThreads makes threads, which the runtime keeps and uses again.
func makeThreads(n int) {
	var made, over sync.WaitGroup
	all := make(chan struct{})
	for range n {
		made.Add(1)
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			<-all
		})
	}
	made.Wait()
	close(all)
	over.Wait()
}

// bornConn is what a descriptor holds, if that is a socket.
func bornConn(fd int) net.Conn {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil
	}
	return &born{os.NewFile(uintptr(fd), "connection")}
}

// born is a connection that the agent was born with. Package net would ask the kernel
// for addresses and options that no caller needs.
type born struct{ *os.File }

func (b *born) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (b *born) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// listenLoopback is net.Listen on 127.0.0.1, without what that asks first of a network
// that it does not know.
func listenLoopback(port int) (net.Listener, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close() // FileListener has its own copy
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, ports.Backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

// receive reads from descriptor 3. Where that is a socket, the descriptors of a link
// may come with the first bytes, for who was started before there was one.
func receive(b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4*linkFDs))
	n, m, _, _, err := unix.Recvmsg(configFD, b, control, unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.ENOTSOCK) {
		return unix.Read(configFD, b)
	}
	if err != nil || m == 0 {
		return n, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil {
		return n, err
	}
	for _, msg := range messages {
		fds, err := unix.ParseUnixRights(&msg)
		if err != nil || len(fds) != linkFDs {
			return n, errors.Join(err, errors.New("not the descriptors of a link"))
		}
		for i, fd := range fds {
			if err := unix.Dup3(fd, tapFD+i, unix.O_CLOEXEC); err != nil {
				return n, os.NewSyscallError("dup3", err)
			}
			_ = unix.Close(fd)
		}
	}
	return n, nil
}

// warm does what the first call would wait for: the runtime looks at each type of a
// message when it is first met.
func warm() {
	_, _ = wire.Decode[agent.Config]([]byte("{}"))
	_, _ = wire.Decode[wire.Hello]([]byte("{}"))
	_, _ = wire.Decode[wire.Request]([]byte("{}"))
	w := wire.NewWriter(io.Discard)
	_ = w.JSON(wire.KindStarted, api.Started{})
	_ = w.JSON(wire.KindExit, api.Result{})
	_ = w.JSON(wire.KindReply, wire.Welcome{})
}

// readConfig reads the configuration, which ends with the descriptor. A line before it is an early
// one, with which early is called at once.
func readConfig(early func(agent.Config) error) (agent.Config, error) {
	var cfg agent.Config
	defer unix.Close(configFD)
	if _, err := unix.GetsockoptInt(configFD, unix.SOL_SOCKET, unix.SO_TYPE); err == nil {
		warm() // there may be long to wait
	}
	told := false // the early one
	data := make([]byte, 0, 4<<10)
	for len(data) < maxConfig {
		n, err := receive(data[len(data):cap(data)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return cfg, fmt.Errorf("read configuration: %w", err)
		}
		if n == 0 {
			break
		}
		if data = data[:len(data)+n]; len(data) == cap(data) {
			data = slices.Grow(data, len(data))
		}
		line, rest, found := bytes.Cut(data, []byte{'\n'})
		if !found {
			continue
		}
		if told {
			return cfg, errors.New("read configuration: there are two early ones")
		}
		told = true
		var first agent.Config
		if err := json.Unmarshal(line, &first); err != nil {
			return cfg, fmt.Errorf("read early configuration: %w", err)
		}
		if err := early(first); err != nil {
			return cfg, err
		}
		data = append(data[:0], rest...)
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	clear(data)
	if len(cfg.Token) < minToken {
		return cfg, fmt.Errorf("read configuration: a token of %d bytes is too short", len(cfg.Token))
	}
	return cfg, nil
}

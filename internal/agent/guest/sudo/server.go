//go:build linux

package sudo

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// address is an abstract name. It belongs to the sandbox's network namespace, and needs no file.
	address = "@cloche-sudo"
	// maxCallers bounds the connections. Each costs the agent a descriptor and a goroutine.
	maxCallers = 256
	// requestTime bounds how long a connection may take to send its request.
	requestTime = 10 * time.Second
	// maxRequest bounds a request. Linux executes no more than 2 MiB of arguments and environment by default.
	maxRequest = 4 << 20
	// stdio is how many descriptors come with a request.
	stdio = 3
)

// Program is a program that Start has started.
type Program interface {
	// Done is closed when the program has ended.
	Done() <-chan struct{}
	// Result is how it ended, after Done.
	Result() api.Result
	// Signal sends a signal to its process group.
	Signal(number int) error
	// Kill kills it with all that it has started.
	Kill()
}

// Server is the agent's part: it starts commands for programs of the sandbox that are not root's. A command
// has the descriptors of the program that asks, so the agent sees none of its input or output. It is killed
// when the program that asks ends before it.
type Server struct {
	start   func(x *wire.Exec, fds [stdio]int) (Program, error)
	callers chan struct{}
}

// NewServer returns a server whose commands are started by start. start doesn't keep the descriptors.
func NewServer(start func(x *wire.Exec, fds [stdio]int) (Program, error)) *Server {
	return &Server{start: start, callers: make(chan struct{}, maxCallers)}
}

// Listen opens the listener of a server. socket makes a Unix socket of that type to which programs of
// the sandbox may connect.
func Listen(socket func(kind int) (int, error)) (*net.UnixListener, error) {
	fd, err := socket(unix.SOCK_STREAM | unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "sudo")
	defer f.Close() // FileListener has its own copy
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: address}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, maxCallers); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
}

// Serve accepts connections until the listener fails. Each is served by a goroutine of its own, started by
// spawn.
func (s *Server) Serve(ln *net.UnixListener, spawn func(func())) error {
	for {
		s.callers <- struct{}{}
		conn, err := ln.AcceptUnix()
		if err != nil {
			<-s.callers
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			<-time.After(10 * time.Millisecond) // such as without a free descriptor
			continue
		}
		spawn(func() {
			defer func() { <-s.callers }()
			defer conn.Close()
			s.handle(conn)
		})
	}
}

// handle serves one connection: a request, then signals, until the command has ended or the caller has.
func (s *Server) handle(conn *net.UnixConn) {
	w := wire.NewWriter(conn)
	x, fds, err := receive(conn)
	if err != nil {
		fail(w, err)
		return
	}
	p, err := s.start(x, fds)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		fail(w, err)
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		r := wire.NewReader(conn)
		for r.Max = wire.MaxHello; ; {
			kind, payload, err := r.Next()
			if err != nil || kind != wire.KindSignal {
				return
			}
			if sig, err := wire.Decode[wire.Signal](payload); err == nil {
				_ = p.Signal(sig.Number)
			}
		}
	}()
	select {
	case <-p.Done():
		_ = w.JSON(wire.KindExit, p.Result())
	case <-gone:
		p.Kill()
	}
	conn.Close()
	<-gone
	<-p.Done()
}

// fail sends an error.
func fail(w *wire.Writer, err error) {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = api.Errorf(api.CodeInternal, "read the request: %w", err)
	}
	_ = w.JSON(wire.KindFail, e)
}

// receive reads a request and its descriptors, which the caller must close.
func receive(conn *net.UnixConn) (x *wire.Exec, fds [stdio]int, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(requestTime))
	defer conn.SetReadDeadline(time.Time{})
	control := make([]byte, unix.CmsgSpace(4*stdio))
	one := make([]byte, 1)
	_, n, flags, _, err := conn.ReadMsgUnix(one, control)
	if err != nil {
		return nil, fds, err
	}
	var got []int
	messages, err := unix.ParseSocketControlMessage(control[:n])
	for _, m := range messages {
		more, perr := unix.ParseUnixRights(&m)
		got, err = append(got, more...), errors.Join(err, perr)
	}
	defer func() {
		if err != nil {
			for _, fd := range got {
				_ = unix.Close(fd)
			}
		}
	}()
	if err != nil || len(got) != stdio || flags&unix.MSG_CTRUNC != 0 {
		return nil, fds, errors.Join(err, api.Invalid("stdio", "a request comes with %d descriptors", stdio))
	}
	r := wire.NewReader(conn)
	r.Max = maxRequest
	kind, payload, err := r.Next()
	if err != nil {
		return nil, fds, err
	}
	if kind != wire.KindRequest {
		return nil, fds, api.Invalid("request", "the first frame is of kind %q", byte(kind))
	}
	asked, err := wire.Decode[wire.Exec](payload)
	if err != nil {
		return nil, fds, err
	}
	// No other field counts: names, keys and timeouts are for callers of the sandbox.
	x = &wire.Exec{Argv: asked.Argv, Env: asked.Env, Cwd: asked.Cwd, User: asked.User, TTY: asked.TTY}
	return x, [stdio]int(got), nil
}

//go:build linux

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Deadlines of what an engine waits for. None is a promise; each only bounds how long a
// broken sandbox can hold a caller.
const (
	BootTimeout = 30 * time.Second
	KillTimeout = 20 * time.Second
)

// AgentSocket is the name of the socket, in the plan's directory, on which an agent accepts.
// Only a process that can enter that 0700 directory can connect, and nothing inside has a name
// for it.
const AgentSocket = "agent.sock"

// backlog is how many connections wait for the agent to accept them.
const backlog = 64

// ListenAgent makes the socket on which the agent of a plan's directory is going to accept. The
// caller owns the descriptor.
func ListenAgent(dir string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := ListenAt(fd, dir); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ListenAt is ListenAgent with a socket that exists already and stays the caller's.
func ListenAt(fd int, dir string) error {
	if err := pidfd.Name(fd, filepath.Join(dir, AgentSocket), unix.Bind); err != nil {
		return fmt.Errorf("bind the agent's socket: %w", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen on the agent's socket: %w", err)
	}
	return nil
}

// DialAgent opens a stream to the socket that ListenAgent made for a sandbox. Its errors are
// classified; dead reports whether the sandbox is.
func DialAgent(sandbox, dir string, dead func() bool) (net.Conn, error) {
	fd, err := pidfd.Socket(filepath.Join(dir, AgentSocket), unix.Connect)
	if err == nil {
		f := os.NewFile(uintptr(fd), AgentSocket)
		defer f.Close()
		var conn net.Conn
		if conn, err = net.FileConn(f); err == nil {
			return conn, nil
		}
	}
	if dead() {
		return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it died", sandbox).WithCause(err)
	}
	return nil, NotListening(sandbox, err)
}

// NotListening is the error of a dial to an agent that is alive and does not answer.
func NotListening(sandbox string, cause error) error {
	e := api.Errorf(api.CodeUnavailable, "dial sandbox %s: the agent does not listen", sandbox).WithCause(cause)
	e.Retryable = true
	return e
}

// ErrAgentEnded is the end of file where the agent's first byte was expected.
var ErrAgentEnded = errors.New("the agent ended before it was ready")

// AgentError is the line that an agent wrote instead of becoming ready. It comes from inside.
type AgentError string

// Error implements error.
func (e AgentError) Error() string { return fmt.Sprintf("the agent said: %q", string(e)) }

// maxComplaint bounds an AgentError, in bytes.
const maxComplaint = 512

// WaitAgent waits, for BootTimeout at most, until an agent has written one byte to a pipe: it
// listens. A line of text instead is an AgentError, and the end of the pipe ErrAgentEnded.
func WaitAgent(ctx context.Context, ready *os.File) error {
	b := make([]byte, maxComplaint)
	n, err := ReadFirst(ctx, ready, b)
	if errors.Is(err, io.EOF) {
		return ErrAgentEnded
	}
	if err != nil {
		return err
	}
	if b[0] < ' ' || b[0] >= 0x7f {
		return nil
	}
	_ = ready.SetReadDeadline(time.Now().Add(time.Second))
	more, _ := io.ReadAtLeast(ready, b[n:], 1)
	line, _, _ := strings.Cut(string(b[:n+more]), "\n")
	return AgentError(line)
}

// ReadFirst reads from a pipe whose other end only the sandbox holds until there is a byte,
// BootTimeout has passed or the context has ended. It is io.EOF when the sandbox closed the pipe.
func ReadFirst(ctx context.Context, f *os.File, b []byte) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, BootTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := f.Read(b)
	if err != nil && ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return n, err
}

//go:build linux

package guest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
)

const (
	configFD = 3
	readyFD  = 4
	// firstFD may be a connection that the engine has made already.
	firstFD   = 5
	maxConfig = 64 << 10
)

// Main is the agent's whole life: it reads its configuration from descriptor 3,
// says on descriptor 4 that it listens (one byte) or why it cannot (a line), and
// serves. It returns the status to exit with.
func Main() int {
	ready := os.NewFile(readyFD, "ready")
	if ready == nil {
		return 2
	}
	a, ln, err := setUp()
	if err != nil {
		line := strings.ReplaceAll(err.Error(), "\n", " ")
		_, _ = io.WriteString(ready, "agent: "+line+"\n")
		ready.Close()
		return 1
	}
	_, err = ready.Write([]byte{'\n'})
	ready.Close()
	if err != nil {
		return 1
	}
	if err := a.serve(ln); err != nil {
		return 1
	}
	return 0
}

// setUp does everything up to where the agent can be dialled.
func setUp() (*Agent, net.Listener, error) {
	// The agent holds little and answers one host: a small heap matters more than
	// the collector's work.
	debug.SetGCPercent(50)
	cfg, err := readConfig()
	if err != nil {
		return nil, nil, err
	}
	for _, fd := range []int{configFD, readyFD} {
		unix.CloseOnExec(fd)
	}
	first := firstConn()
	for sig := unix.Signal(1); sig < 32; sig++ {
		if ignoredSignals>>uint(sig)&1 != 0 {
			signal.Ignore(sig)
		}
	}
	if cfg.KernelGuardsInit {
		// The kernel withholds from a first process only what it has no handler
		// for. The runtime has one for these and takes them for its own fault,
		// unless they are asked for.
		signal.Notify(make(chan os.Signal, 1), unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGABRT, unix.SIGTRAP,
			unix.SIGSYS, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF, unix.SIGIO, unix.SIGPWR)
	}
	if cfg.Hostname != "" {
		// Not everywhere allowed, and the engine may have done it.
		_ = unix.Sethostname([]byte(cfg.Hostname))
	}
	// The port is below 1024: before the agent is another user.
	port := cfg.Port
	if port == 0 {
		port = agent.Port
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	a, err := newAgent(cfg)
	if err != nil {
		ln.Close()
		return nil, nil, err
	}
	a.first = first
	return a, ln, nil
}

// firstConn is what descriptor 5 holds, if that is a socket.
func firstConn() net.Conn {
	var st unix.Stat_t
	if unix.Fstat(firstFD, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	f := os.NewFile(firstFD, "first connection")
	defer f.Close() // FileConn has its own copy, closed on exec
	unix.CloseOnExec(firstFD)
	conn, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	return conn
}

func readConfig() (agent.Config, error) {
	var cfg agent.Config
	f := os.NewFile(configFD, "config")
	if f == nil {
		return cfg, fmt.Errorf("read configuration: descriptor %d is not open", configFD)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	clear(data)
	if len(cfg.Token) < 16 {
		return cfg, fmt.Errorf("read configuration: a token of %d bytes is too short", len(cfg.Token))
	}
	return cfg, nil
}

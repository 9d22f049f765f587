//go:build linux

package sudo

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pty"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// errNoServer says that the sandbox was created without sudo.
var errNoServer = errors.New("programs of this sandbox cannot get root's rights: create it with `--sudo`, or ask for a command as root, such as with `cloche exec --user root`")

// signaled is added to the number of the signal that ended a command, as shells do.
const signaled = 128

// ask has the agent run the command and returns its status.
func (c command) ask() (int, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return 0, errNoServer
	}
	defer conn.Close()
	if c.over && len(c.argv) == 0 {
		return 0, nil
	}
	x, err := c.request()
	if err != nil {
		return 0, err
	}
	fds := [stdio]int{0, 1, 2}
	t, err := newTTY()
	if err != nil {
		return 0, err
	}
	if t != nil {
		defer t.close()
		x.TTY = true
		t.replace(&fds)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds[:]...), nil); err != nil {
		return 0, fmt.Errorf("ask for the command: %w", err)
	}
	w := wire.NewWriter(conn)
	if err := w.JSON(wire.KindRequest, x); err != nil {
		return 0, fmt.Errorf("ask for the command: %w", err)
	}
	if t != nil {
		t.carry()
	}
	forward(w, t)
	r := wire.NewReader(conn)
	kind, payload, err := r.Next()
	if err != nil {
		return 0, errors.New("the sandbox ends")
	}
	if kind == wire.KindFail {
		e, err := wire.Decode[api.Error](payload)
		if err != nil {
			return 0, err
		}
		if e.Code == api.CodeCommandNotFound {
			return 0, notFound(c.argv[0])
		}
		return 0, &e
	}
	res, err := wire.Decode[api.Result](payload)
	if err != nil || kind != wire.KindExit {
		return 0, errors.Join(err, fmt.Errorf("the answer is of kind %q", byte(kind)))
	}
	if res.ExitCode != nil {
		return *res.ExitCode, nil
	}
	return signaled + api.SignalNumber(res.Signal), nil
}

// request is what the agent is asked to run.
func (c command) request() (*wire.Exec, error) {
	spec := c.user
	if c.group != "" {
		spec += ":" + c.group
	}
	u, err := (&identity.Users{}).Lookup(spec)
	if err != nil {
		return nil, fmt.Errorf("unknown user %s", spec)
	}
	env := withSystemPath(c.environ(os.Environ(), u))
	argv := c.argv
	if c.login || c.shell {
		_, shell, err := c.program(env)
		if err != nil {
			return nil, err
		}
		if argv = []string{shell}; c.login {
			argv = append(argv, "-l")
		}
		if len(c.argv) > 0 {
			argv = append(argv, "-c", quoted(c.argv))
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/" // such as one that has been removed
	}
	switch {
	case strings.HasPrefix(c.dir, "/"):
		dir = c.dir
	case c.dir != "":
		dir += "/" + c.dir
	case c.login:
		dir = u.Home
	}
	x := &wire.Exec{User: spec, Cwd: api.Bytes(dir)}
	for _, a := range argv {
		x.Argv = append(x.Argv, api.Bytes(a))
	}
	for _, v := range env {
		if name, _, ok := strings.Cut(v, "="); ok && name != "" {
			x.Env = append(x.Env, api.Bytes(v))
		}
	}
	return x, nil
}

// withSystemPath returns an environment in whose PATH programs of root are found.
func withSystemPath(env []string) []string {
	for i, v := range env {
		dirs, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
			if !strings.Contains(":"+dirs+":", ":"+dir+":") {
				dirs += ":" + dir
			}
		}
		env[i] = "PATH=" + dirs
	}
	return env
}

// forward sends the signals that this program gets on to the command.
func forward(w *wire.Writer, t *tty) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGCONT, unix.SIGWINCH)
	signal.Ignore(unix.SIGPIPE)
	go func() {
		for s := range signals {
			if s == unix.SIGWINCH {
				t.resize()
			} else if err := w.JSON(wire.KindSignal, wire.Signal{Number: int(s.(unix.Signal))}); err != nil {
				return
			}
		}
	}()
}

// tty is a terminal of its own for the command, which is in another session than this program. It is nil if
// none of the standard streams is a terminal. Those that are no terminal stay as they are.
type tty struct {
	master, slave *os.File
	isTTY         [stdio]bool
	// shown is the descriptor of this program's own terminal.
	shown int
	// before are the settings of standard input to set back, nil if they were not changed.
	before *unix.Termios
	over   chan struct{} // closed when all output is written
}

// newTTY opens a terminal if one of the standard streams is one.
func newTTY() (*tty, error) {
	t := &tty{shown: -1, over: make(chan struct{})}
	for fd := range t.isTTY {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			t.isTTY[fd] = true
			if t.shown < 0 || fd == 1 {
				t.shown = fd
			}
		}
	}
	if !t.isTTY[0] {
		return nil, nil //nolint:nilnil // the command needs no terminal of its own
	}
	master, path, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	if t.slave, err = os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		master.Close()
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	t.master = master
	t.resize()
	if before, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
		raw := *before
		raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		raw.Oflag &^= unix.OPOST
		raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
		raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
		if unix.IoctlSetTermios(0, unix.TCSETSF, &raw) == nil {
			t.before = before
		}
		_ = unix.IoctlSetTermios(int(t.slave.Fd()), unix.TCSETS, before)
	}
	return t, nil
}

// replace puts the terminal where the standard streams are one.
func (t *tty) replace(fds *[stdio]int) {
	for i := range fds {
		if t.isTTY[i] {
			fds[i] = int(t.slave.Fd())
		}
	}
}

// resize gives the terminal the size of this program's own.
func (t *tty) resize() {
	if t == nil {
		return
	}
	if size, err := unix.IoctlGetWinsize(t.shown, unix.TIOCGWINSZ); err == nil {
		if raw, err := t.master.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
		}
	}
}

// carry copies between the two terminals. The command has the slave by now: without another of this program's,
// the output ends with the command.
func (t *tty) carry() {
	t.slave.Close()
	go func() {
		_, _ = io.Copy(t.master, os.Stdin)
	}()
	go func() {
		defer close(t.over)
		_, _ = io.Copy(os.NewFile(uintptr(t.shown), "terminal"), t.master) // EIO when the last program has closed it
	}()
}

// drainTime bounds how long output is awaited while a program in the background has the terminal.
const drainTime = 250 * time.Millisecond

// close writes the rest of the output and sets the terminal back.
func (t *tty) close() {
	t.slave.Close()
	select {
	case <-t.over:
	case <-time.After(drainTime):
	}
	if t.before != nil {
		_ = unix.IoctlSetTermios(0, unix.TCSETSW, t.before)
	}
	t.master.Close()
}

//go:build linux

package process

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/pty"
)

// openTerminal makes a terminal that belongs to u. The path is of its other side.
func openTerminal(rows, cols uint16, u identity.User) (*os.File, string, error) {
	f, path, err := pty.Open()
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return nil, "", api.Errorf(api.CodeUnsupported, "this sandbox has no terminals: %w", err)
	}
	if err != nil {
		return nil, "", internal("make terminal", err)
	}
	err = resize(f, rows, cols)
	if err == nil && !u.Root() {
		if err = unix.Chown(path, int(u.UID), int(u.GID)); errors.Is(err, unix.EPERM) {
			err = nil // a terminal of the agent's own user
		}
	}
	if err != nil {
		f.Close()
		return nil, "", internal("make terminal", err)
	}
	return f, path, nil
}

// resize sets the size of a terminal; zeros leave it.
func resize(f *os.File, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return nil
	}
	return pathwalk.WithFD(f, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// foreground returns the process group in front of a terminal. It is 0 where the
// kernel does not say.
func foreground(tty *os.File) (pgid int, err error) {
	err = pathwalk.WithFD(tty, func(fd int) error {
		var err error
		pgid, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if errors.Is(err, unix.ENOTTY) { // gVisor tells it to the terminal's session only
		return 0, nil
	}
	return pgid, err
}

// typeSignal has the terminal send a signal to the group in front, as if its key
// had been pressed. It reports whether the terminal has such a key now.
func typeSignal(tty *os.File, sig unix.Signal) (bool, error) {
	var t *unix.Termios
	err := pathwalk.WithFD(tty, func(fd int) error {
		var err error
		t, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil {
		return false, err
	}
	key, ok := map[unix.Signal]int{unix.SIGINT: unix.VINTR, unix.SIGQUIT: unix.VQUIT, unix.SIGTSTP: unix.VSUSP}[sig]
	if !ok || t.Lflag&unix.ISIG == 0 || t.Cc[key] == 0 {
		return false, nil
	}
	_, err = tty.Write([]byte{t.Cc[key]})
	return err == nil, err
}

//go:build unix

package command

import (
	"errors"
	"os"
	"syscall"
)

// forwarded are the signals that a command gets instead of this process.
func forwarded() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// caught are signals that are taken so that they do not end this process: a
// reader of its output that went away shows as an error of the write.
func caught() []os.Signal { return []os.Signal{syscall.SIGPIPE, syscall.SIGWINCH} }

// signalName is the name of a signal as the API spells it.
func signalName(s os.Signal) string {
	switch s {
	case syscall.SIGINT:
		return "INT"
	case syscall.SIGTERM:
		return "TERM"
	case syscall.SIGHUP:
		return "HUP"
	case syscall.SIGQUIT:
		return "QUIT"
	case syscall.SIGUSR1:
		return "USR1"
	case syscall.SIGUSR2:
		return "USR2"
	}
	return ""
}

// isResize reports whether a signal says that the terminal's size changed.
func isResize(s os.Signal) bool { return s == syscall.SIGWINCH }

// brokenPipe is the exit status of a program whose reader went away.
const brokenPipe = ExitSignal + int(syscall.SIGPIPE)

// isBrokenPipe reports whether a write failed since its reader went away.
func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

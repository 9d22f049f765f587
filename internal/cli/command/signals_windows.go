package command

import (
	"errors"
	"os"
	"syscall"
)

// forwarded are the signals that a command gets instead of this process.
func forwarded() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

// caught are signals that are taken so that they do not end this process.
func caught() []os.Signal { return nil }

// signalName is the name of a signal as the API spells it.
func signalName(s os.Signal) string {
	switch s {
	case os.Interrupt:
		return "INT"
	case syscall.SIGTERM:
		return "TERM"
	}
	return ""
}

// isResize reports whether a signal says that the terminal's size changed,
// which this platform has none for: a terminal keeps the size it began with.
func isResize(os.Signal) bool { return false }

// brokenPipe is the exit status of a program whose reader went away, the same
// on every platform.
const brokenPipe = ExitSignal + 13

// isBrokenPipe reports whether a write failed since its reader went away.
func isBrokenPipe(err error) bool {
	const errorBrokenPipe, errorNoData = syscall.Errno(109), syscall.Errno(232)
	return errors.Is(err, errorBrokenPipe) || errors.Is(err, errorNoData)
}

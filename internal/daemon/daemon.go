// Package daemon knows everything and decides nothing: it reads the
// configuration, wires the rooms, runs the doors and closes all in reverse. The
// same wiring serves as daemon and inside a single run.
package daemon

import (
	"io"
	"log/slog"
)

// Config is what a daemon or an in-process core is started with.
type Config struct {
	// Home is the directory that holds everything; it is made when missing.
	Home string
	// Listen are addresses, "unix:///path" or "tcp://host:port"; none is the
	// socket in the home.
	Listen []string
	// Rules is the path of the operator's rules; empty is policy.yaml in the home,
	// where it exists.
	Rules string
	// Token is what callers over TCP must show; empty is the one in the file
	// "token" of the home, which is made when it is missing.
	Token string
	// Version is what the API says of itself.
	Version string
	// Log receives the daemon's log, one line a record; nil discards it.
	Log io.Writer
	// LogJSON makes these lines JSON.
	LogJSON bool
}

// logger makes the logger that Config describes.
func (c Config) logger() *slog.Logger {
	switch {
	case c.Log == nil:
		return slog.New(slog.DiscardHandler)
	case c.LogJSON:
		return slog.New(slog.NewJSONHandler(c.Log, nil))
	default:
		return slog.New(slog.NewTextHandler(c.Log, nil))
	}
}

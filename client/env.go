package client

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Environment variables of FromEnv and of the command.
const (
	EnvHost  = "CLOCHE_HOST"
	EnvToken = "CLOCHE_TOKEN"
	EnvHome  = "CLOCHE_HOME"
	// EnvCAFile is Options.CAFile.
	EnvCAFile = "CLOCHE_CA_FILE"
	// EnvSilence is Options.Silence, such as 45s; 0 is indefinitely.
	EnvSilence = "CLOCHE_SILENCE"
)

// SocketName is the name of the daemon's socket in its home directory.
const SocketName = "cloche.sock"

// FromEnv returns a client configured by CLOCHE_HOST, CLOCHE_TOKEN, CLOCHE_CA_FILE and
// CLOCHE_SILENCE. Without CLOCHE_HOST it uses the daemon of CLOCHE_HOME, and without that the one
// at DefaultHost.
func FromEnv() (*Client, error) {
	silence, err := ParseSilence(os.Getenv(EnvSilence))
	if err != nil {
		return nil, err
	}
	return New(Options{Host: os.Getenv(EnvHost), Token: os.Getenv(EnvToken), CAFile: os.Getenv(EnvCAFile), Silence: silence})
}

// ParseSilence parses a value of CLOCHE_SILENCE for Options.Silence.
func ParseSilence(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if v == "0" || err == nil && d == 0 {
		return -1, nil
	}
	if err != nil || d < time.Second {
		return 0, api.Invalid("silence", "%s is %q", EnvSilence, v).WithHint("write a duration of at least 1s, such as 45s, or 0 for no bound")
	}
	return d, nil
}

// DefaultHost returns the address of the socket in DefaultHome, for Options.Host.
func DefaultHost() string {
	return "unix://" + filepath.ToSlash(filepath.Join(DefaultHome(), SocketName))
}

// DefaultHome returns the directory of this user's daemon, with its state and its socket:
// CLOCHE_HOME if it is set, /var/lib/cloche for root, and for other users the platform's directory
// for application state. It does not create the directory.
func DefaultHome() string {
	if h := os.Getenv(EnvHome); h != "" {
		return h
	}
	if runtime.GOOS == "linux" {
		if os.Geteuid() == 0 {
			return "/var/lib/cloche"
		}
		if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
			return filepath.Join(d, "cloche")
		}
		if d, err := os.UserHomeDir(); err == nil {
			return filepath.Join(d, ".local", "state", "cloche")
		}
	}
	if d, err := os.UserConfigDir(); err == nil {
		return filepath.Join(d, "cloche")
	}
	return filepath.Join(os.TempDir(), "cloche")
}

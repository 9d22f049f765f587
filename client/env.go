package client

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The environment that FromEnv and the command read.
const (
	EnvHost  = "CLOCHE_HOST"
	EnvToken = "CLOCHE_TOKEN"
	EnvHome  = "CLOCHE_HOME"
	// EnvCAFile is Options.CAFile.
	EnvCAFile = "CLOCHE_CA_FILE"
	// EnvSilence is Options.Silence, such as 45s; 0 waits indefinitely.
	EnvSilence = "CLOCHE_SILENCE"
)

// SocketName is the name of the daemon's socket in its home.
const SocketName = "cloche.sock"

// FromEnv makes a client from CLOCHE_HOST, CLOCHE_TOKEN, CLOCHE_CA_FILE and CLOCHE_SILENCE. Without
// CLOCHE_HOST it is the daemon of CLOCHE_HOME, and without that the one at DefaultHost.
func FromEnv() (*Client, error) {
	silence, err := ParseSilence(os.Getenv(EnvSilence))
	if err != nil {
		return nil, err
	}
	return New(Options{Host: os.Getenv(EnvHost), Token: os.Getenv(EnvToken), CAFile: os.Getenv(EnvCAFile), Silence: silence})
}

// ParseSilence is Options.Silence as the value of CLOCHE_SILENCE says it.
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

// DefaultHost is the socket in DefaultHome, as a host of Options.
func DefaultHost() string {
	return "unix://" + filepath.ToSlash(filepath.Join(DefaultHome(), SocketName))
}

// DefaultHome is where a daemon of this user keeps its state and its socket:
// CLOCHE_HOME where it is set; /var/lib/cloche for root; and for others the
// platform's directory for application state. It is not created.
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

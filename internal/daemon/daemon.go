// Package daemon knows everything and decides nothing: it reads the
// configuration, wires the packages, runs the listeners and closes all in reverse. The
// same wiring serves as daemon and inside a single run.
package daemon

import (
	"io"
	"log/slog"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Config is what a daemon or an in-process core is started with.
type Config struct {
	// Home is the directory that holds everything; it is made when missing.
	Home string
	// Listen are addresses, "unix:///path" or "tcp://host:port", beside the socket in
	// the home.
	Listen []string
	// Hosts are names by which callers over TCP may call the daemon, beside the
	// machine's own, and Origins the browser origins whose pages may.
	Hosts, Origins []string
	// TLSCert and TLSKey are files of a certificate and its key for the TCP addresses;
	// without them these are in the clear.
	TLSCert, TLSKey string
	// Rules is the path of the operator's rules; empty is policy.yaml in the home,
	// where it exists.
	Rules string
	// SkillsDir is the absolute path of the directory with the skills of all tenants;
	// empty is "skills" in the home.
	SkillsDir string
	// RulesOver are keys that are set over what the rules say, now and whenever they
	// are read again.
	RulesOver []rules.Override
	// Token is what callers over TCP must show; empty is the one in the file
	// "token" of the home, which is made when it is missing.
	Token string
	// Version is what the API says of itself.
	Version string
	// Ready has an in-process core start what a sandbox needs before it is asked for one,
	// because it is going to be. A daemon does that always.
	Ready bool
	// Log receives the daemon's log, one line a record; nil discards it.
	Log io.Writer
	// LogJSON makes these lines JSON.
	LogJSON bool
	// LogLevel is the least that is logged.
	LogLevel slog.Level
	// Docker and Podman are where these engines find their daemons.
	Docker, Podman ContainerDaemon
	// Nsjail is the path of the nsjail binary; empty is the one in PATH.
	Nsjail string
	// Pool is how many sandboxes a daemon keeps ready.
	Pool Pool
	// Ingress is how ports of sandboxes are served.
	Ingress Ingress
	// Box has the daemon serve LangBot too; nil does not.
	Box *Box
	// E2B says how clients of E2B are served.
	E2B E2B
	// CheckpointKey is the path of a file of age identities, which encrypt the memory of suspended sandboxes and
	// snapshots; empty encrypts nothing.
	CheckpointKey string
	// CompressAfter is how long after its suspend the memory of a sandbox is compressed; 0 is never.
	CompressAfter time.Duration
	// Available is how much memory of the machine stays available, in bytes: if it is less, idle sandboxes that allow it are
	// suspended. 0 suspends none.
	Available int64
	// OCIRuntime is the name or the path of the OCI runtime; empty is the first that is
	// usable.
	OCIRuntime string
	// Admission bounds how many sandboxes are made at once; zero is the default.
	Admission policy.Admission
	// Deadlines are how long requests may take; zero is the defaults.
	Deadlines httpapi.Deadlines
	// AgentSilence is how long an agent that a call waits for may answer nothing; 0 is the
	// default.
	AgentSilence time.Duration
	// Warnings are logged at the start.
	Warnings []string
}

// Box says how a daemon serves LangBot.
type Box struct {
	// Host and Port are where its connections come in. An empty Host is every address
	// with a token, and loopback without one.
	Host string
	Port int
	// In and Out are a pipe on which its control connection is; both may be nil. The end
	// of the pipe ends the daemon.
	In  io.Reader
	Out io.Writer
}

// E2B says how a daemon serves clients of E2B, at its TCP addresses and at one of their own, and which
// service the engine e2b uses.
type E2B struct {
	// Listen is the address of their own, such as 127.0.0.1:3000. It is empty if they have no such address.
	Listen string
	// Profile is the profile of the sandboxes; empty is the default profile. Allow are their egress
	// rules; empty leaves their network to the profile.
	Profile string
	Allow   []string
	// Domain is the domain of the names of ports; empty means no names.
	Domain string
	// Service is the service of the engine e2b, without Inner and Logger.
	Service e2b.Options
}

// ContainerDaemon is what an operator says of a Docker daemon, or of a Podman service.
type ContainerDaemon struct {
	// Host is its address, such as "unix:///var/run/docker.sock"; empty is where its
	// packages put it.
	Host string
	// CertDir has the certificates for one behind TCP.
	CertDir string
	// Runtime is its name of an OCI runtime; empty is its own choice. RuntimeTier is
	// how strong the operator says that this isolates.
	Runtime     string
	RuntimeTier api.Tier
	// SharesHostFS says whether it sees the files of this machine.
	SharesHostFS docker.Sharing
}

// logger makes the logger that Config describes, and logs the warnings.
func (c Config) logger() *slog.Logger {
	logger := c.newLogger()
	for _, w := range c.Warnings {
		logger.Warn(w)
	}
	return logger
}

func (c Config) newLogger() *slog.Logger {
	switch {
	case c.Log == nil:
		return slog.New(slog.DiscardHandler)
	case c.LogJSON:
		return slog.New(slog.NewJSONHandler(c.Log, &slog.HandlerOptions{Level: c.LogLevel}))
	default:
		return slog.New(slog.NewTextHandler(c.Log, &slog.HandlerOptions{Level: c.LogLevel}))
	}
}

//go:build darwin || windows || remoteonly

package network

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
)

// On this system sandboxes run on another machine, be it a virtual one, whose networks
// cannot be entered: no sandbox has a network.

// Options are what Networks work with.
type Options struct {
	// Logger receives errors that no caller waits for; nil discards them.
	Logger *slog.Logger
	// Own says whether a public address is this machine's; nil asks the machine.
	Own func(netip.Addr) bool
	// Roots are those by which hosts are verified whose TLS is opened; nil is the
	// machine's.
	Roots  *x509.CertPool
	Redact func(string) string
}

// Place says whose network it would be.
type Place struct {
	ID, Name, Hostname string
	Dir                string
	Grant              policy.EgressGrant
	Secrets            []intercept.Secret
	Value              func(ctx context.Context, name string) (string, error)
	Opens              bool
	Ask                func(context.Context, egress.Asked) bool
	Tell               func(api.EgressRecord)
}

// Networks make no network here, and say so.
type Networks struct{}

// ErrLost says that no process has the link of a sandbox any more.
var ErrLost = errors.New("no process holds the link")

// New makes Networks.
func New(context.Context, Options) *Networks { return &Networks{} }

func noNetwork() error {
	return api.Errorf(api.CodeUnsupported, "on this system sandboxes run on another machine, whose networks cannot be entered: none has a network").
		WithHint("ask for none, or run the daemon on the machine of the sandboxes")
}

// Open is refused.
func (*Networks) Open(context.Context, Place) (*Network, error) { return nil, noNetwork() }

// Adopt finds none.
func (*Networks) Adopt(context.Context, Place) (*Network, error) { return nil, ErrLost }

// Sweep has nothing to let go of.
func (*Networks) Sweep(context.Context, []string) error { return nil }

// Close has nothing to close.
func (*Networks) Close() error { return nil }

// Network is the network of one sandbox. This system has no networks.
type Network struct{}

// Link is nil.
func (*Network) Link() *engine.Link { return nil }

// Mounts are none.
func (*Network) Mounts() []engine.Mount { return nil }

// Handed is refused.
func (*Network) Handed(context.Context) error { return noNetwork() }

// Settle is refused.
func (*Network) Settle(context.Context) error { return noNetwork() }

// Grant lets nothing out.
func (*Network) Grant() policy.EgressGrant { return policy.EgressGrant{} }

// SetGrant is refused.
func (*Network) SetGrant(policy.EgressGrant) error { return noNetwork() }

// Authority is nil.
func (*Network) Authority() *intercept.Authority { return nil }

// ReadLog has nothing to read.
func (*Network) ReadLog(context.Context, api.EgressLogOptions, func(api.EgressRecord) error) error {
	return noNetwork()
}

// Mark is of nothing.
func (*Network) Mark() int64 { return 0 }

// Since is nothing.
func (*Network) Since(int64) []api.EgressRefusal { return nil }

// Record keeps nothing.
func (*Network) Record(api.EgressRecord) {}

// Used is nothing.
func (*Network) Used() api.EgressLimits { return api.EgressLimits{} }

// Leave has nothing to leave.
func (*Network) Leave() error { return nil }

// Close has nothing to close.
func (*Network) Close() error { return nil }

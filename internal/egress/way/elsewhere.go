//go:build darwin || windows || elsewhere

package way

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
)

// On this system sandboxes run on another machine, be it a virtual one, whose networks
// cannot be entered: no sandbox has a way out.

// Options are what Ways work with.
type Options struct {
	// Logger receives what nobody waits for; nil discards it.
	Logger *slog.Logger
	// Own says whether a public address is this machine's; nil asks the machine.
	Own func(netip.Addr) bool
	// Roots are those by which hosts are verified whose TLS is opened; nil is the
	// machine's.
	Roots  *x509.CertPool
	Redact func(string) string
}

// Place says whose way it would be.
type Place struct {
	ID, Name, Hostname string
	Dir                string
	Grant              policy.EgressGrant
	Secrets            []intercept.Secret
	Value              func(ctx context.Context, name string) (string, error)
	Opens              bool
	Ask                func(context.Context, egress.Asked) bool
	Tell               func(cloche.EgressRecord)
}

// Ways make no way here, and say so.
type Ways struct{}

// ErrLost says that nobody has the link of a sandbox any more.
var ErrLost = errors.New("no process holds the link")

// New makes Ways.
func New(context.Context, Options) *Ways { return &Ways{} }

func noWay() error {
	return cloche.Errorf(cloche.CodeUnsupported, "on this system sandboxes run on another machine, whose networks cannot be entered: none has a network").
		WithHint("ask for none, or run the daemon on the machine of the sandboxes")
}

// Open is refused.
func (*Ways) Open(context.Context, Place) (*Way, error) { return nil, noWay() }

// Adopt finds none.
func (*Ways) Adopt(context.Context, Place) (*Way, error) { return nil, ErrLost }

// Sweep has nothing to let go of.
func (*Ways) Sweep(context.Context, []string) error { return nil }

// Close has nothing to close.
func (*Ways) Close() error { return nil }

// Way is the way out of one sandbox. There is none.
type Way struct{}

// Link is none.
func (*Way) Link() *engine.Link { return nil }

// Mounts are none.
func (*Way) Mounts() []engine.Mount { return nil }

// Handed is refused.
func (*Way) Handed(context.Context) error { return noWay() }

// Settle is refused.
func (*Way) Settle(context.Context) error { return noWay() }

// Grant lets nothing out.
func (*Way) Grant() policy.EgressGrant { return policy.EgressGrant{} }

// SetGrant is refused.
func (*Way) SetGrant(policy.EgressGrant) error { return noWay() }

// Authority is none.
func (*Way) Authority() *intercept.Authority { return nil }

// ReadLog has nothing to read.
func (*Way) ReadLog(context.Context, cloche.EgressLogOptions, func(cloche.EgressRecord) error) error {
	return noWay()
}

// Mark is of nothing.
func (*Way) Mark() int64 { return 0 }

// Since is nothing.
func (*Way) Since(int64) []cloche.EgressRefusal { return nil }

// Record keeps nothing.
func (*Way) Record(cloche.EgressRecord) {}

// Used is nothing.
func (*Way) Used() cloche.EgressLimits { return cloche.EgressLimits{} }

// Leave has nothing to leave.
func (*Way) Leave() error { return nil }

// Close has nothing to close.
func (*Way) Close() error { return nil }

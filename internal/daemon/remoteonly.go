//go:build darwin || windows || remoteonly

package daemon

import (
	"context"
	"os"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

// kernels has nothing ready: engines of this system have daemons of their own.
type kernels struct{}

// sweepExecutables has none to sweep.
func (h *app) sweepExecutables(kernels, *snapshot.Store) error { return nil }

// unpacker returns nil: no directory of this system is mounted in a sandbox.
func unpacker() func() (*os.File, error) { return nil }

// Prepare has nothing to prepare.
func (kernels) Prepare(string, float64, bool) {}

// PrepareKnown has nothing to prepare.
func (kernels) PrepareKnown(string, func() (string, error)) error { return nil }

// openEngines makes the engines of this build: those whose sandboxes run on another
// machine, be it a virtual one. The others say why they are not here.
func (h *app) openEngines(cfg Config, _ bool) (kernels, []engine.Engine, error) {
	remote, err := h.openRemote(cfg)
	if err != nil {
		return kernels{}, nil, err
	}
	var engines []engine.Engine
	for _, name := range []string{"gvisor", "native", "oci", "nsjail"} {
		engines = append(engines, absent(name))
	}
	return kernels{}, append(engines, remote...), nil
}

// absent is an engine by its name, which needs the kernel of Linux below it and so is not
// on this system.
type absent string

func (a absent) error() error {
	return api.Errorf(api.CodeUnsupported, "the engine %s runs on Linux, and the daemon runs on another system", string(a)).
		WithHint("choose the engine docker or podman, or run the daemon on Linux")
}

// Name implements engine.Engine.
func (a absent) Name() string { return string(a) }

// Probe implements engine.Engine.
func (a absent) Probe(context.Context) engine.Report {
	tier := api.TierNamespace
	if a == "gvisor" {
		tier = api.TierGVisor
	}
	return engine.Report{Name: string(a), Tier: tier, Problems: []api.Problem{{
		What: "it runs on Linux, and the daemon runs on another system", Mend: "choose the engine docker or podman, or run the daemon on Linux",
	}}}
}

// Create implements engine.Engine.
func (a absent) Create(context.Context, engine.Plan) (engine.Instance, error) { return nil, a.error() }

// Recover implements engine.Engine.
func (a absent) Recover(context.Context, []byte) (engine.Instance, error) { return nil, a.error() }

// Sweep implements engine.Engine: there is nothing to sweep.
func (absent) Sweep(context.Context, string, func(string) bool) error { return nil }

// innerProgram is what a container begins with, which the build embeds.
func innerProgram() ([]byte, error) {
	if binary, ok := embed.Binary(); ok {
		return binary, nil
	}
	return nil, errNoAgent
}

var errNoAgent = api.Errorf(api.CodeUnavailable, "this build has no agent for Linux in it").WithHint("build it with: make build")

// ownAgent: this executable cannot play the agent.
func ownAgent(context.Context, *image.Store) (string, error) { return "", errNoAgent }

// openNetworks makes what refuses every network.
func openNetworks(ctx context.Context, _ sandbox.Options, o network.Options) *network.Networks {
	return network.New(ctx, o)
}

// forgetOwner has nothing to do: no engine here keeps records of its own.
func forgetOwner(string, string) error { return nil }

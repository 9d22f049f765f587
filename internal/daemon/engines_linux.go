package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
	"github.com/cloche-dev/cloche/internal/engine/oci"
)

// usualCPUs are those of a sandbox that asks for no other number: the built-in
// profile's. Where they are not, the first sandbox waits a little longer.
const usualCPUs = 2

// openEngines makes the engines of this build, in the order in which "auto" tries
// them.
func (h *house) openEngines(cfg Config, ephemeral bool) (*gvisor.Engine, []engine.Engine, error) {
	log := h.log
	gv, err := gvisorEngine(h.home, ephemeral, cfg.Ready, log)
	if err != nil {
		return nil, nil, err
	}
	h.closers = append(h.closers, func(context.Context) error { return gv.Close() })
	waiting := cfg.Waiting
	if ephemeral {
		waiting = 0
	}
	nat, err := native.New(native.Options{StateDir: h.home.path("engines", native.Name), RootsDir: h.home.path("roots"), Spares: waiting, Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("make engine native: %w", err)
	}
	h.closers = append(h.closers, func(context.Context) error { return nat.Close() })
	jail, err := nsjail.New(nsjail.Options{
		Program: cfg.Nsjail, StateDir: h.home.path("engines", nsjail.Name), RootsDir: h.home.path("roots"), IDsDir: h.home.path("engines", native.Name), Logger: log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make engine nsjail: %w", err)
	}
	h.closers = append(h.closers, func(context.Context) error { return jail.Close() })
	oc, err := oci.New(oci.Options{
		// Ranges of ids are shared by all engines that take some.
		StateDir: h.home.path("engines", oci.Name), RootsDir: h.home.path("roots"), IDsDir: h.home.path("engines", native.Name),
		Runtime: cfg.OCIRuntime, Logger: log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make engine oci: %w", err)
	}
	h.closers = append(h.closers, func(context.Context) error { return oc.Close() })
	engines := []engine.Engine{gv, nat, oc, jail}
	for _, o := range []docker.Options{
		{
			Name: docker.Docker, Hosts: docker.Hosts(docker.Docker, cfg.Docker.Host, os.Getenv), CertDir: cfg.Docker.CertDir,
			Runtime: cfg.Docker.Runtime, RuntimeTier: cfg.Docker.RuntimeTier, SharesHostFS: cfg.Docker.SharesHostFS,
		},
		{
			Name: docker.Podman, Hosts: docker.Hosts(docker.Podman, cfg.Podman.Host, os.Getenv), CertDir: cfg.Podman.CertDir,
			Runtime: cfg.Podman.Runtime, RuntimeTier: cfg.Podman.RuntimeTier, SharesHostFS: cfg.Podman.SharesHostFS,
		},
	} {
		o.Inner, o.Logger = innerProgram, log
		e, err := docker.New(o)
		if err != nil {
			return nil, nil, fmt.Errorf("make engine %s: %w", o.Name, err)
		}
		h.closers = append(h.closers, func(context.Context) error { return e.Close() })
		engines = append(engines, e)
	}
	return gv, engines, nil
}

// volumeTimeout bounds the removal of a volume.
const volumeTimeout = 30 * time.Second

// removeVolume returns what has an engine remove a volume, for as long as ctx lives.
func removeVolume(ctx context.Context, engines []engine.Engine) func(name, volume string) error {
	return func(name, volume string) error {
		for _, e := range engines {
			if keeper, ok := e.(engine.VolumeKeeper); ok && e.Name() == name {
				ctx, cancel := context.WithTimeout(ctx, volumeTimeout)
				defer cancel()
				return keeper.RemoveVolume(ctx, volume)
			}
		}
		return cloche.Errorf(cloche.CodeUnsupported, "this build has no engine %q that keeps volumes", name)
	}
}

// gvisorEngine is the first engine of this build, and what "auto" tries first. A
// daemon keeps the executable that its sandboxes are started from.
func gvisorEngine(h *home, ephemeral, ready bool, log *slog.Logger) (*gvisor.Engine, error) {
	opts := gvisor.Options{StateDir: h.path("engines", gvisor.Name), Spare: !ephemeral, Logger: log}
	if !ephemeral {
		opts.KeepDir = h.path("bin")
	}
	gv, err := gvisor.New(opts)
	if err != nil {
		return nil, fmt.Errorf("make engine gvisor: %w", err)
	}
	if ephemeral && ready {
		gv.Prepare(h.owner, usualCPUs, true)
	}
	return gv, nil
}

// prober makes what asks the engines what they can do here.
func (h *house) prober(engines []engine.Engine) *core.Prober {
	p := core.NewProber(engines)
	h.closers = append(h.closers, func(context.Context) error { p.Close(); return nil })
	return p
}

// innerProgram is what a container begins with: the embedded agent, or this very
// executable.
func innerProgram() ([]byte, error) {
	if binary, ok := embed.Binary(); ok {
		return binary, nil
	}
	return os.ReadFile("/proc/self/exe")
}

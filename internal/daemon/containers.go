//go:build linux || darwin || windows

package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// openRemote makes the engines whose sandboxes another program runs: a daemon of containers, or a
// service.
func (h *app) openRemote(cfg Config) ([]engine.Engine, error) {
	engines, err := h.openContainers(cfg)
	if err != nil {
		return nil, err
	}
	o := cfg.E2B.Service
	o.Inner, o.Logger = innerProgram, h.log
	e, err := e2b.New(o)
	if err != nil {
		return nil, fmt.Errorf("make engine %s: %w", e2b.Name, err)
	}
	h.closers = append(h.closers, func(context.Context) error { return e.Close() })
	return append(engines, e), nil
}

// openContainers makes the engines that have daemons of their own.
func (h *app) openContainers(cfg Config) ([]engine.Engine, error) {
	var engines []engine.Engine
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
		o.Inner, o.Logger = innerProgram, h.log
		e, err := docker.New(o)
		if err != nil {
			return nil, fmt.Errorf("make engine %s: %w", o.Name, err)
		}
		h.closers = append(h.closers, func(context.Context) error { return e.Close() })
		engines = append(engines, e)
	}
	return engines, nil
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
		return api.Errorf(api.CodeUnsupported, "this build has no engine %q that keeps volumes", name)
	}
}

// prober makes what asks the engines what they can do here.
func (h *app) prober(engines []engine.Engine) *core.Prober {
	p := core.NewProber(engines, func() *api.Problem { return workspace.StageProblem(h.home.ownerDir()) })
	h.closers = append(h.closers, func(context.Context) error { p.Close(); return nil })
	return p
}

//go:build !remoteonly

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/checkpoint"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
	"github.com/cloche-dev/cloche/internal/engine/oci"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

// kernels is the engine that has something ready for its next sandbox.
type kernels = *gvisor.Engine

// openEngines makes the engines of this build, in the order in which "auto" tries
// them.
func (h *app) openEngines(cfg Config, ephemeral bool) (kernels, []engine.Engine, error) {
	log := h.log
	if !ephemeral {
		keepFromOOM(log)
	}
	gv, err := gvisorEngine(h.home, ephemeral, cfg, log)
	if err != nil {
		return nil, nil, err
	}
	h.closers = append(h.closers, func(context.Context) error { return gv.Close() })
	nat, err := native.New(native.Options{StateDir: h.home.path("engines", native.Name), RootsDir: h.home.path("roots"), PoolBytes: cfg.Pool.Bytes, Logger: log})
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
	remote, err := h.openRemote(cfg)
	if err != nil {
		return nil, nil, err
	}
	return gv, append(engines, remote...), nil
}

// gvisorEngine is the first engine of this build, and what "auto" tries first. It keeps
// the executable that its sandboxes are started from.
func gvisorEngine(h *home, ephemeral bool, cfg Config, log *slog.Logger) (*gvisor.Engine, error) {
	opts := gvisor.Options{StateDir: h.path("engines", gvisor.Name), KeepDir: h.path("bin"), Warm: !ephemeral, PoolBytes: cfg.Pool.Bytes, Logger: log}
	if cfg.CheckpointKey != "" {
		key, err := checkpoint.ReadKey(cfg.CheckpointKey)
		if err != nil {
			return nil, err
		}
		opts.CheckpointKey = key
	}
	gv, err := gvisor.New(opts)
	if err != nil {
		return nil, fmt.Errorf("make engine gvisor: %w", err)
	}
	if ephemeral && cfg.Ready {
		gv.Prepare(h.owner, usualCPUs, true)
	}
	return gv, nil
}

// innerProgram is what a container begins with: the embedded agent, or this very
// executable.
func innerProgram() ([]byte, error) {
	if binary, ok := embed.Binary(); ok {
		return binary, nil
	}
	return os.ReadFile("/proc/self/exe")
}

// unpacker opens the embedded agent as an executable that no directory holds, once. It stays open for the life of
// this process.
func unpacker() func() (*os.File, error) {
	return sync.OnceValues(func() (*os.File, error) {
		binary, ok := embed.Binary()
		if !ok {
			return nil, errors.New("the build has no agent of its own")
		}
		fd, err := unix.MemfdCreate("cloche-agent", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("memfd_create", err)
		}
		f := os.NewFile(uintptr(fd), "cloche-agent")
		defer f.Close()
		if _, err := f.Write(binary); err != nil {
			return nil, fmt.Errorf("write executable: %w", err)
		}
		return os.Open("/proc/self/fd/" + strconv.Itoa(fd)) // what can be written to is not executed
	})
}

// ownAgent makes the image of the agent of this very executable, which plays it too.
func ownAgent(ctx context.Context, images *image.Store) (string, error) {
	return images.AgentImageFile(ctx, "/proc/self/exe")
}

// openNetworks makes the networks of sandboxes. Links that outlive this process have a
// fd store.
func openNetworks(ctx context.Context, o sandbox.Options, opts network.Options) *network.Networks {
	var networks *network.Networks
	if !o.Ephemeral {
		opts.Store = fdstore.NewClient(fdstore.Options{Dir: o.Dir, Logger: opts.Logger, Again: func() { networks.ParkAgain() }})
	}
	networks = network.New(ctx, opts)
	return networks
}

// forgetOwner removes the records that the engines in a directory have of an owner.
func forgetOwner(engines, owner string) error {
	entries, err := os.ReadDir(engines)
	if err != nil {
		return fmt.Errorf("list engines: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, lifecycle.Forget(filepath.Join(engines, e.Name()), owner))
	}
	return errors.Join(errs...)
}

// keepFromOOM has the kernel kill the daemon last of Cloche's processes when memory
// runs out. It is no reason not to serve.
func keepFromOOM(log *slog.Logger) {
	score, err := pidfd.KeepFromOOM()
	if err != nil {
		log.Warn("keep the daemon from being killed first when memory runs out", "error", err)
		return
	}
	log.Debug("daemon has its place when memory runs out", "oom_score_adj", score)
}

// sweepExecutables removes the executables that neither a sandbox nor a saved memory needs.
func (h *app) sweepExecutables(gv kernels, snapshots *snapshot.Store) error {
	templates, err := snapshots.Templates()
	if err != nil {
		return err
	}
	memories, err := directory.RecordedMemories(h.home.path("owners"), templates)
	if err != nil {
		return err
	}
	return gv.SweepExecutables(memories)
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// ephemeralPrefix begins the name of an in-process run's owner.
const ephemeralPrefix = "r-"

// house is everything, wired. Closers run in reverse.
type house struct {
	home    *home
	rules   policy.Rules
	core    *core.Service
	manager *sandbox.Manager
	log     *slog.Logger
	closers []func(context.Context) error
}

// build wires the rooms. With ephemeral, the sandboxes die with this process.
func build(ctx context.Context, cfg Config, ephemeral bool) (h *house, err error) {
	logger := cfg.logger()
	h = &house{log: logger}
	defer func() {
		if err != nil {
			if cerr := h.close(ctx); cerr != nil {
				logger.Error("close after a failed start", "error", cerr)
			}
			h = nil
		}
	}()
	if h.home, err = openHome(cfg.Home); err != nil {
		return h, err
	}
	if h.rules, err = loadRules(cfg.Rules, h.home.path("policy.yaml")); err != nil {
		return h, err
	}
	owner := h.home.daemonOwner()
	if ephemeral {
		owner = cloche.NewID(ephemeralPrefix)
	}
	if err := h.home.claim(owner); errors.Is(err, errOwned) {
		return h, cloche.Errorf(cloche.CodeState, "a daemon for %s is running already", h.home.dir).
			WithHint("stop it, or choose another directory with --home")
	} else if err != nil {
		return h, err
	}
	h.closers = append(h.closers, func(context.Context) error { return h.home.close(ephemeral) })

	log, err := audit.Open(audit.Options{Home: h.home.dir, Logger: logger})
	if err != nil {
		return h, err
	}
	h.closers = append(h.closers, func(context.Context) error { return log.Close() })
	images, err := image.Open(h.home.path("images"))
	if err != nil {
		return h, err
	}
	workspaces, err := workspace.Open(h.home.dir)
	if err != nil {
		return h, err
	}
	engines, closeEngines, err := makeEngines(h.home, logger)
	if err != nil {
		return h, err
	}
	h.closers = append(h.closers, closeEngines)
	if err := h.home.sweepDead(ctx, engines); err != nil {
		logger.Error("sweep what dead runs left", "error", err)
	}
	h.manager = sandbox.New(sandbox.Options{
		Dir: h.home.ownerDir(), Owner: owner, Ephemeral: ephemeral, Engines: engines, Images: images,
		Workspaces: workspaces, AgentImage: agentImage(images), Logger: logger,
		Ended: func(sb cloche.Sandbox) { h.core.Ended(sb) },
	})
	h.closers = append(h.closers, h.manager.Close)
	userHome, _ := os.UserHomeDir()
	h.core = core.New(core.Options{
		Rules: h.rules, Sandboxes: h.manager, Images: images, Audit: log, Prober: core.NewProber(engines),
		Logger: logger, Version: cfg.Version, Home: h.home.dir, UserHome: userHome,
	})
	if !ephemeral {
		if err := h.manager.Recover(ctx); err != nil {
			logger.Error("recover sandboxes", "error", err)
		}
	}
	return h, nil
}

// close undoes build in reverse.
func (h *house) close(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(h.closers) {
		errs = append(errs, c(ctx))
	}
	h.closers = nil
	return errors.Join(errs...)
}

// makeEngines lists the engines of this build; the first is what "auto" tries
// first.
func makeEngines(h *home, log *slog.Logger) ([]engine.Engine, func(context.Context) error, error) {
	gv, err := gvisor.New(gvisor.Options{StateDir: h.path("engines", gvisor.Name), Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("make engine gvisor: %w", err)
	}
	return []engine.Engine{gv}, func(context.Context) error { return gv.Close() }, nil
}

// agentImage returns what makes the image of the agent: the one that the build
// embedded, or this very executable, which plays the agent when it is started
// under its name. It is found once; the program does not change while it runs.
func agentImage(images *image.Store) func(context.Context) (string, error) {
	var mu sync.Mutex
	var found string
	return func(ctx context.Context) (path string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if _, err := os.Lstat(found); found != "" && err == nil {
			return found, nil
		}
		if binary, ok := embed.Binary(); ok {
			path, err = images.AgentImage(ctx, binary)
		} else {
			path, err = images.AgentImageFile(ctx, "/proc/self/exe")
		}
		if err == nil {
			found = path
		}
		return path, err
	}
}

// loadRules reads the operator's rules: from asked, which must exist, or from
// usual, which need not.
func loadRules(asked, usual string) (policy.Rules, error) {
	path := asked
	if path == "" {
		path = usual
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && asked == "" {
		return policy.Rules{}, nil
	}
	if err != nil {
		return policy.Rules{}, cloche.Errorf(cloche.CodeInvalid, "the policy file cannot be read: %w", err).
			WithHint("name one with --config, or put it at %s", usual)
	}
	rules, err := policy.ParseRules(data)
	if err != nil {
		return rules, fmt.Errorf("policy file %s: %w", filepath.Clean(path), err)
	}
	return rules, nil
}

//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	glog "gvisor.dev/gvisor/pkg/log"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/checkpoint"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/embed"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/engine/pool"
)

// Name is what requests call this engine.
const Name = "gvisor"

// controlTimeout bounds how long a broken sentry can hold a caller.
const controlTimeout = 10 * time.Second

// Options configure an Engine.
type Options struct {
	// StateDir is a 0700 directory for the engine's own records, one for each
	// instance: how Sweep finds what a dead daemon left. Required.
	StateDir string
	// ExePath is the executable of sandboxes; empty is the one that this build carries, or the running
	// one. It must call role.Dispatch first in its main and be statically linked.
	ExePath string
	// KeepDir is a 0700 directory in which the engine keeps the executable of
	// sandboxes, under its hash, so that an upgrade affects no sandbox. Empty keeps none:
	// one that the build carries is then unpacked into memory.
	KeepDir string
	// CgroupParent is the name of the cgroup under which the engine makes its
	// own; empty is "cloche".
	CgroupParent string
	// Warm keeps pools: of sentries that have been started for no sandbox yet, and of
	// booted sandboxes, as many as plans ask for. They end with this process.
	Warm bool
	// PoolBytes is how much memory the booted sandboxes of the pool have at most; 0 is
	// unlimited.
	PoolBytes int64
	// CheckpointKey encrypts the memory that is saved; nil encrypts nothing.
	CheckpointKey *checkpoint.Key
	// Logger receives what cannot be returned; nil discards it.
	Logger *slog.Logger
}

// Engine is the gVisor engine.
type Engine struct {
	opts     Options
	log      *slog.Logger
	records  lifecycle.Records[record]
	spawner  *pidfd.Spawner
	groups   cgroup.Maker
	rootless bool
	version  string // gVisor's
	boot     string // the machine's

	executables *executables
	sums        checkpoint.Sums
	sentries    *pool.Pool[fit, *pooled]
	booted      *pool.Pool[bootedKind, *booted]
	unfit       atomic.Int64 // plans that no booted sandbox could become
	late        lateMounts
	kinds       kinds

	probing sync.Mutex
	probed  engine.Report
}

var _ engine.Engine = (*Engine)(nil)

// New makes an engine. It starts nothing; but where no cgroup is at hand it asks
// systemd for one, into which this process moves, for two seconds at most. What
// gVisor's packages log in this process goes to the logger from then on: their
// logger is one for the process, and would write to the user's terminal.
func New(o Options) (*Engine, error) {
	if o.StateDir == "" {
		return nil, api.Errorf(api.CodeInternal, "gvisor engine: no state directory given")
	}
	var carried func() (io.ReadCloser, error)
	if o.ExePath == "" && embed.Present() {
		carried = embed.Open
	}
	if o.ExePath == "" {
		o.ExePath = "/proc/self/exe"
	}
	if o.CgroupParent == "" {
		o.CgroupParent = "cloche"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, api.Errorf(api.CodeInternal, "make state directory of the gvisor engine: %w", err)
	}
	glog.SetTarget(debugLog{o.Logger})
	e := &Engine{
		opts:     o,
		log:      o.Logger.With("engine", Name),
		records:  newRecords(o.StateDir),
		spawner:  pidfd.NewSpawner(),
		groups:   cgroup.Find(groupLayout(o.CgroupParent), os.Geteuid() == 0),
		rootless: os.Geteuid() != 0,
		version:  gvisorVersion,
		boot:     pidfd.Boot(),
		executables: &executables{
			path: o.ExePath, carried: carried, dir: o.KeepDir, log: o.Logger.With("engine", Name), everybody: os.Geteuid() == 0,
		},
	}
	e.late.dir, e.late.root = filepath.Join(o.StateDir, "pool"), !e.rootless
	e.kinds.dir = e.late.dir
	if o.Warm {
		if err := e.late.make(); err != nil {
			return nil, api.Errorf(api.CodeInternal, "make directory of the pool of the gvisor engine: %w", err)
		}
	}
	e.sentries = pool.New[fit, *pooled](pool.Options[fit]{Prefix: sentryPrefix, Pause: refillPause, Timeout: lifecycle.BootTimeout, Log: e.log})
	e.booted = pool.New[bootedKind, *booted](pool.Options[bootedKind]{
		Prefix: bootedPrefix, Pause: refillPause, Timeout: lifecycle.BootTimeout, Budget: o.PoolBytes, Valid: bootedKind.valid, Log: e.log,
	})
	return e, nil
}

// Abilities implements engine.Able.
func (e *Engine) Abilities() engine.Abilities {
	return engine.Abilities{Tier: api.TierGVisor, Link: true, Pinned: true, Pause: true, Layer: true, Refusals: true, Suspend: true}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return Name }

// Close ends the engine's own goroutines, and what is in its pools. Instances
// that were created with DieWithParent die; the others live on.
func (e *Engine) Close() error {
	e.booted.Close()
	if c := e.PoolCounts(); c.Made > 0 {
		e.log.Info("the pool is closed", "taken", c.Taken, "missed", c.Missed, "unfit", c.Unfit, "made", c.Made, "dropped", c.Dropped)
	}
	e.sentries.Close()
	e.spawner.Close()
	return nil
}

// Probe implements engine.Engine. A machine that is usable stays so; one that is
// not is probed again each time, because an operator may be fixing it.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	e.probing.Lock()
	defer e.probing.Unlock()
	if !e.probed.Usable {
		e.probed = e.probe(ctx)
	}
	return e.probed
}

// debugLog passes on what gVisor logs, for who looks for details.
type debugLog struct{ log *slog.Logger }

// Emit implements the log target of gVisor.
func (d debugLog) Emit(_ int, _ glog.Level, _ time.Time, format string, v ...any) {
	d.log.Debug(fmt.Sprintf(format, v...), "engine", Name)
}

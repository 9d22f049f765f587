//go:build linux

package native

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/engine/pool"
)

// Name is what requests call this engine.
const Name = "native"

// Options configure an Engine.
type Options struct {
	// StateDir is a 0700 directory for the engine's own records. Required.
	StateDir string
	// RootsDir is where images are unpacked that the kernel does not mount. Required.
	RootsDir string
	// IDsDir is where ranges of ids are noted that are taken; empty is StateDir. Engines
	// that share it never give one range to two sandboxes.
	IDsDir string
	// Jail is a program that isolates in the engine's stead; may be nil.
	Jail *Jail
	// PoolBytes is how much memory agents have at most that wait in namespaces of their
	// own, so that sandboxes do not wait for the kernel to make them; 0 is unlimited. How
	// many wait is what plans ask for. They end with this process. There are none with a
	// Jail, or where the daemon is not root's.
	PoolBytes int64
	// Logger receives what cannot be returned; nil discards it.
	Logger *slog.Logger
}

// Engine is the engine of the kernel's own namespaces.
type Engine struct {
	name     string
	jail     *Jail
	log      *slog.Logger
	records  lifecycle.Records[record]
	groups   cgroup.Maker
	ids      *hostrootfs.IDPool
	images   *hostrootfs.Images
	rootless bool
	boot     string
	spawner  *pidfd.Spawner
	pool     *pool.Pool[kind, *creation]
	unfit    atomic.Int64 // plans that no agent that waits is for

	probing sync.Mutex
	probed  engine.Report
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Able   = (*Engine)(nil)
	_ engine.Host   = (*Engine)(nil)
)

// New makes an engine. It starts nothing.
func New(o Options) (*Engine, error) {
	if o.StateDir == "" || o.RootsDir == "" {
		return nil, api.Errorf(api.CodeInternal, "native engine: no directories given")
	}
	name := Name
	if o.Jail != nil {
		name = o.Jail.Name
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		name: name, jail: o.Jail, log: o.Logger.With("engine", name), records: lifecycle.Records[record]{Dir: o.StateDir, Blank: blank},
		rootless: os.Geteuid() != 0, boot: pidfd.Boot(), spawner: pidfd.NewSpawner(),
	}
	if err := os.MkdirAll(e.records.Dir, 0o700); err != nil {
		return nil, api.Errorf(api.CodeInternal, "make state directory of engine %s: %w", name, err)
	}
	e.groups = findGroups(!e.rootless, name)
	e.images = hostrootfs.NewImages(o.RootsDir, !e.rootless)
	e.ids = hostrootfs.NewIDPool(cmp.Or(o.IDsDir, o.StateDir), !e.rootless)
	e.pool = newPool(e, o.PoolBytes)
	return e, nil
}

// Abilities implements engine.Able.
func (e *Engine) Abilities() engine.Abilities {
	return engine.Abilities{Tier: api.TierNamespace, Link: true, Pause: true}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return e.name }

// Terms implements engine.Host.
func (e *Engine) Terms() engine.Terms {
	closes := hostrootfs.ClosesSockets(hostrootfs.LandlockVersion())
	if u := e.groups.Unified(); e.jail != nil && u != nil && u.Has(cgroup.Pids) {
		// The program above the agent is in the group too, so the agent can make none.
		return engine.Terms{CoversSockets: true, ClosesSockets: closes, SingleUser: e.rootless, LimitsPids: true, CountsAgent: true, NoGroups: true}
	}
	if e.countsByUser() {
		return engine.Terms{CoversSockets: true, ClosesSockets: closes, SingleUser: true, LimitsPids: true, CountsAgent: true, NoGroups: e.groups.Unified() == nil}
	}
	return engine.Terms{CoversSockets: true, ClosesSockets: closes, SingleUser: e.rootless, LimitsPids: limitsPids(e.groups), NoGroups: e.groups.Unified() == nil}
}

// Close ends what the engine has running in this process. Instances that were created
// with DieWithParent die; the others live on.
func (e *Engine) Close() error {
	e.pool.Close()
	e.spawner.Close()
	e.images.Close()
	return nil
}

// Probe implements engine.Engine. A machine that is usable stays so; one that is not
// is probed again each time, because an operator may be fixing it.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	e.probing.Lock()
	defer e.probing.Unlock()
	if !e.probed.Usable {
		e.probed = e.probe(ctx)
	}
	return e.probed
}

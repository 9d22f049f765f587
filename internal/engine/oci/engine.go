//go:build linux

package oci

import (
	"log/slog"
	"os"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Name is what requests call this engine.
const Name = "oci"

// overhead is what the agent may take above the limit of memory.
const overhead = 48 << 20

// Options configure an Engine.
type Options struct {
	// StateDir is a 0700 directory for the engine's own records. Required.
	StateDir string
	// RootsDir is where images are unpacked that the kernel does not mount. Required.
	RootsDir string
	// IDsDir is where is written down which ranges of ids are taken: one directory for
	// all engines that take some. Required.
	IDsDir string
	// Runtime is a runtime's name (Runc, Crun, Krun) or path; empty is the first that is
	// usable.
	Runtime string
	// ExePath is the executable that plays the watcher's role (see Dispatch); empty is
	// this one.
	ExePath string
	// Logger receives what cannot be returned; nil discards it.
	Logger *slog.Logger
}

// Engine is the engine of OCI runtimes.
type Engine struct {
	opts    Options
	log     *slog.Logger
	records lifecycle.Records[record]
	groups  cgroup.Maker
	ids     *hostrootfs.IDPool
	images  *hostrootfs.Images
	boot    string
	root    bool

	probing sync.Mutex
	probed  engine.Report
	chosen  binary // of a report that is usable
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Able   = (*Engine)(nil)
	_ engine.Host   = (*Engine)(nil)
)

// record is what is written down of an instance.
type record struct {
	lifecycle.Head
	// Init is the first process, the agent; zero before the runtime has made it.
	Init pidfd.ID `json:"init,omitzero"`
	// Parent is the process that the instance must not outlive; zero without one.
	Parent pidfd.ID `json:"parent,omitzero"`
	// IDs is where the sandbox's range of ids begins on the host; 0 without a range.
	IDs uint32 `json:"ids,omitempty"`
	// Runtime is the path of the program that made it.
	Runtime string `json:"runtime,omitempty"`
	// Group is its cgroup as the runtime knows it.
	Group string `json:"group,omitempty"`
}

// New makes an engine. It starts nothing.
func New(o Options) (*Engine, error) {
	if o.StateDir == "" || o.RootsDir == "" || o.IDsDir == "" {
		return nil, api.Errorf(api.CodeInternal, "oci engine: no directories given")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{o.StateDir, o.IDsDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, api.Errorf(api.CodeInternal, "make state directory of the oci engine: %w", err)
		}
	}
	e := &Engine{opts: o, log: o.Logger.With("engine", Name), boot: pidfd.Boot(), root: os.Geteuid() == 0}
	e.records = lifecycle.Records[record]{Dir: o.StateDir, Blank: func(h lifecycle.Head) record {
		rec := record{Head: h}
		rec.Group = e.groupOf(rec)
		return rec
	}}
	e.groups = cgroup.None("no cgroup is delegated to the user of the daemon")
	if e.root {
		e.groups = cgroup.Look(cgroup.Layout{
			Parent: "cloche-oci", Controllers: []string{cgroup.Memory, cgroup.CPU, cgroup.Usage, cgroup.Pids}, Bare: true, Overhead: overhead,
			Split: func(h cgroup.Hierarchy) bool {
				return h.Mount.Version == 1 && (h.Has(cgroup.Memory) || h.Has(cgroup.Pids))
			},
		}, true)
	}
	e.ids = hostrootfs.NewIDPool(o.IDsDir, e.root)
	e.images = hostrootfs.NewImages(o.RootsDir, e.root)
	return e, nil
}

// Abilities implements engine.Able.
func (e *Engine) Abilities() engine.Abilities {
	return engine.Abilities{Tier: api.TierNamespace, Link: true, Pause: true}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return Name }

// Terms implements engine.Host.
func (e *Engine) Terms() engine.Terms {
	u := e.groups.Unified()
	return engine.Terms{CoversSockets: true, ClosesSockets: hostrootfs.ClosesSockets(hostrootfs.LandlockVersion()), LimitsPids: e.groups.Has(cgroup.Pids) && (u == nil || !u.Has(cgroup.Pids)), NoGroups: u == nil}
}

// Close ends what the engine has running in this process. Instances live on, except
// those that were created with DieWithParent.
func (e *Engine) Close() error {
	e.images.Close()
	return nil
}

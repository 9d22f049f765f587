//go:build linux

package gvisor

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
)

// GVisorVersion is what the engine takes itself for.
const GVisorVersion = gvisorVersion

// OfVersion makes the engine one whose build has another version of gVisor compiled in.
func (e *Engine) OfVersion(version string) *Engine {
	e.version = version
	return e
}

// The notes of a sentry that are taken at once, and how often one is afterwards.
const (
	NoteBurst = noteBurst
	NotePace  = notePace
)

// WithoutCgroups makes the engine one of a machine on which no cgroup can be
// made.
func (e *Engine) WithoutCgroups() *Engine {
	e.groups = cgroup.None("a test has none")
	return e
}

// OnUnified makes the engine one of a machine that has only the hierarchy of
// version 2, as far as that can be without its controllers. It is false where
// none is mounted.
func (e *Engine) OnUnified(parent string) bool {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	for _, m := range cgroup.ParseMounts(string(b)) {
		if m.Version == 2 {
			e.groups = cgroup.In(groupLayout(parent), cgroup.Hierarchy{Mount: m, Root: filepath.Join(m.Path, parent)})
			return os.Geteuid() == 0
		}
	}
	return false
}

// Brief is what is logged of a sentry's last words.
func Brief(words string) string { return brief(words) }

// Reports are the engine's ends of what a guard says.
type Reports struct{ *reports }

// MakeReports makes both ends of a guard that a test plays.
func MakeReports(dir string) (pipe, count *os.File, r Reports, err error) {
	if pipe, count, err = makeReports(dir); err != nil {
		return nil, nil, Reports{}, err
	}
	r.reports, err = openReports(dir)
	return pipe, count, r, err
}

// Listen is Refusals of an instance that lives until dead is closed.
func (r Reports) Listen(ctx context.Context, dead <-chan struct{}, fn func(engine.PathDenial)) error {
	return r.listen(ctx, dead, fn)
}

// Close gives up the ends.
func (r Reports) Close() { r.close() }

// UntoldIn is what Recover finds of a dead instance.
func UntoldIn(dir string) engine.Untold { return untoldIn(dir) }

// CreateBooted boots a sandbox for plans like p and creates p's from it, if one can become it. Another is not
// kept ready. It reports whether there was one.
func (e *Engine) CreateBooted(ctx context.Context, p engine.Plan) (i engine.Instance, err error, fits bool) {
	p.Pool.Ceiling = 1
	r := e.readyFor(p)
	p.Pool = engine.Pool{}
	if !r.fits || p.Memory != nil || p.Validate() != nil || p.CheckMountPoints() != nil {
		i, err = e.Create(ctx, p)
		return i, err, false
	}
	b, err := e.bootAhead(ctx, api.NewID(bootedPrefix), r.kind, p)
	if err != nil {
		i, err = e.Create(ctx, p)
		return i, err, false
	}
	own, err := b.claim(ctx, p)
	if err != nil {
		i, err = e.Create(ctx, p)
		return i, err, true
	}
	return own, nil, true
}

// Sentries is how many sentries are ready for no sandbox.
func (e *Engine) Sentries() int { return e.sentries.Counts().Ready }

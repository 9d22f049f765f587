//go:build linux

package native

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Recover implements engine.Engine.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	rec, err := lifecycle.Decode[record](state)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox: %w", err)
	}
	if !rec.Outlived() {
		p, above, err := rec.find()
		if err == nil {
			i := newInstance(e, rec, p, above, e.groups.Open(rec.Cgroups))
			i.state = bytes.Clone(state)
			return i, nil
		}
		if !errors.Is(err, os.ErrProcessDone) {
			return nil, api.Errorf(api.CodeInternal, "recover sandbox %s: %w", rec.ID, err)
		}
	}
	if err := e.destroy(ctx, rec); err != nil {
		return nil, err
	}
	return nil, api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", rec.ID)
}

// find opens the processes of a record. It is os.ErrProcessDone when one of them is dead
// or soon will be.
func (rec record) find() (init, above *pidfd.Process, err error) {
	if rec.Jail != (pidfd.ID{}) {
		if above, err = pidfd.Find(rec.Jail); err != nil {
			return nil, nil, err
		}
	}
	if init, err = pidfd.Find(rec.Init); err == nil && pidfd.Dying(rec.Init.PID) {
		init.Abandon()
		err = os.ErrProcessDone
	}
	if err != nil && above != nil {
		above.Abandon()
	}
	return init, above, err
}

// Sweep implements engine.Engine.
func (e *Engine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	if !engine.SafeName(owner) {
		return api.Errorf(api.CodeInternal, "sweep: owner %q is not safe as a file name", owner)
	}
	recs, err := e.records.List(owner)
	if err != nil {
		return api.Errorf(api.CodeInternal, "sweep: %w", err)
	}
	// Cgroups of the owner without a record: of instances whose state directory was
	// lost.
	for id, dirs := range e.groups.Orphans(owner) {
		if !slices.ContainsFunc(recs, func(rec record) bool { return rec.has(id) }) {
			recs = append(recs, record{Head: lifecycle.Head{ID: id, Owner: owner, Cgroups: dirs}})
		}
	}
	var errs []error
	for _, rec := range recs {
		switch {
		case engine.Keeps(keep, rec.ID) || e.pool.holds(rec.ID):
		case slices.ContainsFunc(recs, func(kept record) bool { return engine.Keeps(keep, kept.ID) && kept.was(rec) }):
			e.records.Remove(rec)
		default:
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// has reports whether an instance is called that, or its groups: as a spare was.
func (rec record) has(id string) bool {
	return rec.ID == id || slices.ContainsFunc(rec.Cgroups, func(dir string) bool { return filepath.Base(dir) == id })
}

// was reports whether an instance was the spare of that record.
func (rec record) was(warm record) bool {
	return rec.Init != (pidfd.ID{}) && rec.Init == warm.Init
}

// destroy kills and removes whatever is left of an instance, known by its record
// only. Where the daemon died between fork and record, the process is in the cgroup,
// or has died with the daemon.
func (e *Engine) destroy(ctx context.Context, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	g := e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)
	if !rec.Outlived() {
		for n, id := range []pidfd.ID{rec.Jail, rec.Init} {
			p, err := pidfd.Find(id)
			if errors.Is(err, os.ErrProcessDone) {
				continue
			}
			if err != nil {
				return api.Errorf(api.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
			}
			if err := killAll(ctx, p, n == 0); err != nil {
				return api.Errorf(api.CodeInternal, "remove sandbox %s: kill process: %w", rec.ID, err)
			}
			p.Close()
		}
	}
	if err := g.Remove(ctx); err != nil {
		return api.Errorf(api.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
	}
	if rec.Dir != "" {
		removeFiles(rec.Dir)
	}
	e.records.Remove(rec)
	e.ids.Release(rec.IDs)
	return nil
}

// sysctl is a setting of the kernel; empty when it has no such one.
func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

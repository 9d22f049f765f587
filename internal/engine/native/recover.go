//go:build linux

package native

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Recover implements engine.Engine.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	return lifecycle.Recover(ctx, state, func(rec record, state []byte) (engine.Instance, error) {
		p, above, err := rec.find()
		if err != nil {
			return nil, err
		}
		return newInstance(e, rec, state, p, above, e.groups.Open(rec.Cgroups)), nil
	}, e.destroy)
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
	recs, err := lifecycle.Remains(e.records, e.groups, owner)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range recs {
		switch {
		case engine.Keeps(keep, rec.ID) || e.pool.Holds(rec.ID):
		case slices.ContainsFunc(recs, func(kept record) bool { return engine.Keeps(keep, kept.ID) && kept.was(rec) }):
			e.records.Remove(rec)
		default:
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// was reports whether an instance was the spare of that record.
func (rec record) was(warm record) bool {
	return rec.Init != (pidfd.ID{}) && rec.Init == warm.Init
}

// destroy kills and removes whatever is left of an instance, known by its record
// only. Where the daemon died between fork and record, the process is in the cgroup,
// or has died with the daemon.
func (e *Engine) destroy(ctx context.Context, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	g := e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)
	if !rec.Outlived() {
		err := lifecycle.KillBy(ctx, rec.ID, func(p *pidfd.Process, n int) error { return killAll(ctx, p, n == 0) }, rec.Jail, rec.Init)
		if err != nil {
			return err
		}
	}
	if err := g.Remove(ctx); err != nil {
		return lifecycle.RemoveError(rec.ID, err)
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

//go:build linux

package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Recover implements engine.Engine. The runtime is not asked: what is alive is known by
// the number and the start of its first process.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	return lifecycle.Recover(ctx, state, func(rec record, state []byte) (engine.Instance, error) {
		if orphan(rec) {
			return nil, os.ErrProcessDone
		}
		p, err := pidfd.Find(rec.Init)
		if err != nil {
			return nil, err
		}
		if pidfd.Dying(rec.Init.PID) {
			p.Abandon()
			return nil, os.ErrProcessDone
		}
		return newInstance(e, rec, state, p, e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)), nil
	}, e.destroy)
}

// orphan reports whether an instance must not outlive a process that is dead.
func orphan(rec record) bool {
	if rec.Parent == (pidfd.ID{}) {
		return false
	}
	start, err := pidfd.StartTime(rec.Parent.PID)
	return err != nil || start != rec.Parent.Start
}

// Sweep implements engine.Engine.
func (e *Engine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	recs, err := lifecycle.Remains(e.records, e.groups, owner)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range recs {
		if !engine.Keeps(keep, rec.ID) {
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// destroy kills and removes whatever is left of an instance, known by its record only.
// Where the daemon died while the runtime made it, its process is in the cgroup.
func (e *Engine) destroy(ctx context.Context, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	g := e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)
	if !rec.Outlived() {
		if err := lifecycle.Kill(ctx, rec.ID, rec.Init); err != nil {
			return err
		}
	}
	e.forget(ctx, rec)
	if err := e.removeGroup(ctx, rec, g); err != nil {
		return lifecycle.RemoveError(rec.ID, err)
	}
	if rec.Dir != "" {
		removeFiles(rec.Dir)
	}
	e.records.Remove(rec)
	e.ids.Release(rec.IDs)
	return nil
}

// forget has the runtime take back what it made of a sandbox. What it does not do, or
// cannot do because its program is gone, the engine does by itself.
func (e *Engine) forget(ctx context.Context, rec record) {
	if rec.Dir == "" || rec.Runtime == "" {
		return
	}
	b := binary{path: rec.Runtime, version: version{Name: filepath.Base(rec.Runtime)}}
	s := newSession(b, rec.Dir)
	if _, err := os.Stat(filepath.Join(s.state, container)); err != nil {
		return // it has made nothing
	}
	st, err := enterStage(ctx, s.hide())
	if err == nil {
		err = st.do(ctx, func() error { return s.work(ctx, nil, "delete", "--force") })
		st.close()
	}
	if err != nil {
		e.log.Warn("have the runtime remove what is left", "sandbox", rec.ID, "error", err)
	}
}

// removeGroup removes our group and those that the runtime made of the same name in
// hierarchies that the engine has no use for.
func (e *Engine) removeGroup(ctx context.Context, rec record, g *cgroup.Group) error {
	err := g.Remove(ctx)
	if info, ierr := os.ReadFile("/proc/self/mountinfo"); ierr == nil && filepath.IsAbs(rec.Group) {
		for _, m := range cgroup.ParseMounts(string(info)) {
			leaf := filepath.Join(m.Path, rec.Group)
			if _, err := os.Lstat(leaf); err != nil {
				continue
			}
			// A process that was killed leaves the group of the sandbox a moment later.
			if cgroup.RemoveTree(ctx, leaf) != nil {
				continue
			}
			// Those above are shared: they go with the last of them.
			for dir := filepath.Dir(rec.Group); dir != "/"; dir = filepath.Dir(dir) {
				if os.Remove(filepath.Join(m.Path, dir)) != nil {
					break
				}
			}
		}
	}
	return err
}

//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Recover implements engine.Engine.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	var left engine.Untold
	i, err := lifecycle.Recover(ctx, state, e.reopen, func(ctx context.Context, rec record) error {
		left = untoldIn(rec.Dir)
		return e.destroy(ctx, rec)
	})
	if dead, ok := errors.AsType[*api.Error](err); ok && dead.Code == api.CodeNotFound && left > 0 {
		return nil, dead.WithCause(left)
	}
	return i, err
}

// reopen is the instance of a record. It is os.ErrProcessDone when it is dead or dying.
func (e *Engine) reopen(rec record, state []byte) (engine.Instance, error) {
	i := &instance{}
	var err error
	if i.sentry, err = pidfd.Find(rec.Sentry); err != nil {
		return nil, err
	}
	if rec.Gofer.PID != 0 {
		i.gofer, err = pidfd.Find(rec.Gofer)
	}
	if err == nil && rec.Late.PID != 0 {
		i.late, err = pidfd.Find(rec.Late)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		i.sentry.Abandon()
		for _, g := range i.gofers() {
			g.Abandon()
		}
		return nil, err
	}
	if err != nil || pidfd.Dying(rec.Sentry.PID) {
		// Without its gofer a sandbox has lost its mounts.
		for _, p := range []*pidfd.Process{i.sentry, i.gofer, i.late} {
			if p != nil {
				p.Kill()
				p.Abandon()
			}
		}
		return nil, os.ErrProcessDone
	}
	if i.reports, err = openReports(rec.Dir); err != nil {
		e.log.Warn("what paths' rules refuse is not told any more", "sandbox", rec.ID, "error", err)
	}
	i.init(e, rec, state, e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups))
	return i, nil
}

// Sweep implements engine.Engine.
func (e *Engine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	recs, err := lifecycle.Remains(e.records, e.groups, owner)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range recs {
		if !engine.Keeps(keep, rec.ID) && !e.sentries.Holds(rec.ID) && !e.booted.Holds(rec.ID) {
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// destroy kills and removes whatever is left of an instance, known by its
// record only.
func (e *Engine) destroy(ctx context.Context, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	ids := rec.processes()
	if rec.Sentry.PID == 0 && rec.Dir != "" {
		// The daemon died between fork and record.
		ids = findProcesses(rec)
	}
	g := e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)
	if err := lifecycle.Kill(ctx, rec.ID, ids...); err != nil {
		return err
	}
	if err := g.Remove(ctx); err != nil {
		return lifecycle.RemoveError(rec.ID, err)
	}
	if rec.Dir != "" {
		removeFiles(rec.Dir)
	}
	if rec.Dir == filepath.Join(e.opts.StateDir, rec.ID) && strings.HasPrefix(rec.ID, bootedPrefix) {
		removeBooted(rec.Dir)
	}
	e.records.Remove(rec)
	return nil
}

// findProcesses looks for the sentry and the gofer of an instance by what only
// the engine can have given them: the name of a role, the bundle and the id.
func findProcesses(rec record) []pidfd.ID {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	roles := []string{early.FirstSentry, early.Sentry, early.FirstGofer, early.Gofer}
	var found []pidfd.ID
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if slices.Contains(roles, args[0]) && args[len(args)-1] == rec.ID &&
			slices.Contains(args, "--bundle="+rec.Dir) {
			if start, err := pidfd.StartTime(pid); err == nil {
				found = append(found, pidfd.ID{PID: pid, Start: start})
			}
		}
	}
	return found
}

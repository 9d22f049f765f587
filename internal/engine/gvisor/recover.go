//go:build linux

package gvisor

import (
	"bytes"
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
	rec, err := lifecycle.Decode[record](state)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox: %w", err)
	}
	i, err := e.reopen(rec, bytes.Clone(state))
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox %s: %w", rec.ID, err)
	}
	if i != nil {
		return i, nil
	}
	untold := untoldIn(rec.Dir)
	if err := e.destroy(ctx, rec); err != nil {
		return nil, err
	}
	dead := api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", rec.ID)
	if untold > 0 {
		return nil, dead.WithCause(untold)
	}
	return nil, dead
}

// reopen is the instance of a record, or nil when it is dead or dying.
func (e *Engine) reopen(rec record, state []byte) (*instance, error) {
	if rec.Outlived() {
		return nil, nil
	}
	i := &instance{}
	var err error
	if i.sentry, err = pidfd.Find(rec.Sentry); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil, nil
		}
		return nil, err
	}
	if rec.Gofer.PID != 0 {
		i.gofer, err = pidfd.Find(rec.Gofer)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		i.sentry.Abandon()
		return nil, err
	}
	if err != nil || pidfd.Dying(rec.Sentry.PID) {
		// Without its gofer a sandbox has lost its mounts.
		for _, p := range []*pidfd.Process{i.sentry, i.gofer} {
			if p != nil {
				p.Kill()
				p.Abandon()
			}
		}
		return nil, nil
	}
	if i.reports, err = openReports(rec.Dir); err != nil {
		e.log.Warn("what paths' rules refuse is not told any more", "sandbox", rec.ID, "error", err)
	}
	i.init(e, rec, state, e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups))
	return i, nil
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
	var errs []error
	var kept []string // names of cgroups
	for _, rec := range recs {
		if !engine.Keeps(keep, rec.ID) {
			errs = append(errs, e.destroy(ctx, rec))
			continue
		}
		for _, dir := range rec.Cgroups {
			kept = append(kept, filepath.Base(dir))
		}
	}
	// Cgroups of the owner without a record: of instances whose state directory
	// was lost, and of sentries that were nobody's when their daemon died.
	for id, dirs := range e.groups.Orphans(owner) {
		if !engine.Keeps(keep, id) && !slices.Contains(kept, id) && !e.pool.holds(id) {
			rec := blank(owner, id)
			rec.Cgroups = dirs
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// destroy kills and removes whatever is left of an instance, known by its
// record only.
func (e *Engine) destroy(ctx context.Context, rec record) error {
	ctx, cancel := withTimeout(ctx, killTimeout)
	defer cancel()
	ids := rec.processes()
	if rec.Sentry.PID == 0 && rec.Dir != "" {
		// The daemon died between fork and record.
		ids = findProcesses(rec)
	}
	g := e.groups.OpenRecorded(rec.Owner, rec.ID, rec.Cgroups)
	for _, id := range ids {
		p, err := pidfd.Find(id)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return api.Errorf(api.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
		}
		p.Kill()
		if err := p.Wait(ctx); err != nil {
			return api.Errorf(api.CodeInternal, "remove sandbox %s: kill process: %w", rec.ID, err)
		}
		p.Close()
	}
	if err := g.Remove(ctx); err != nil {
		return api.Errorf(api.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
	}
	if rec.Dir != "" {
		removeFiles(rec.Dir)
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

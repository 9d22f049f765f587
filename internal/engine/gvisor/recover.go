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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
)

// Recover implements engine.Engine.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	rec, err := decodeRecord(state)
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeInternal, "recover sandbox: %w", err)
	}
	i, err := e.reopen(rec)
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeInternal, "recover sandbox %s: %w", rec.ID, err)
	}
	if i != nil {
		return i, nil
	}
	if err := e.destroy(ctx, rec); err != nil {
		return nil, err
	}
	return nil, cloche.Errorf(cloche.CodeNotFound, "recover sandbox %s: it is dead", rec.ID)
}

// reopen is the instance of a record, or nil when it is dead or dying.
func (e *Engine) reopen(rec record) (*instance, error) {
	i := &instance{}
	var err error
	if i.sentry, err = openProcess(rec.Sentry.PID, rec.Sentry.Start); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil, nil
		}
		return nil, err
	}
	if rec.Gofer.PID != 0 {
		i.gofer, err = openProcess(rec.Gofer.PID, rec.Gofer.Start)
	}
	if err != nil || dying(rec.Sentry.PID) {
		// Without its gofer a sandbox has lost its mounts.
		for _, p := range []*process{i.sentry, i.gofer} {
			if p != nil {
				p.kill()
				p.abandon()
			}
		}
		return nil, nil
	}
	i.init(e, rec, e.groups.open(rec.Cgroups))
	return i, nil
}

// dying reports whether a process that is not dead yet will soon be: it has
// given up its memory, and with it the command line.
func dying(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err != nil || len(b) == 0
}

// Sweep implements engine.Engine.
func (e *Engine) Sweep(ctx context.Context, owner string, keep []string) error {
	if !safeName(owner) {
		return cloche.Errorf(cloche.CodeInternal, "sweep: owner %q is not safe as a file name", owner)
	}
	recs, err := e.records.list(owner)
	if err != nil {
		return cloche.Errorf(cloche.CodeInternal, "sweep: %w", err)
	}
	var errs []error
	for _, rec := range recs {
		if !slices.Contains(keep, rec.ID) {
			errs = append(errs, e.destroy(ctx, rec))
		}
	}
	// Cgroups of the owner without a record: of instances whose state directory
	// was lost.
	for _, rec := range e.groups.orphans(owner) {
		if !slices.Contains(keep, rec.ID) {
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
	ids := []processID{rec.Sentry, rec.Gofer}
	if rec.Sentry.PID == 0 && rec.Dir != "" {
		// The daemon died between fork and record.
		ids = findProcesses(rec)
	}
	for _, id := range ids {
		p, err := openProcess(id.PID, id.Start)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return cloche.Errorf(cloche.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
		}
		p.kill()
		if err := p.wait(ctx); err != nil {
			return cloche.Errorf(cloche.CodeInternal, "remove sandbox %s: kill process: %w", rec.ID, err)
		}
		p.close()
	}
	g := e.groups.open(rec.Cgroups)
	if len(rec.Cgroups) == 0 {
		g = e.groups.open(e.groups.dirs(rec.Owner, rec.ID))
	}
	if err := g.remove(ctx); err != nil {
		return cloche.Errorf(cloche.CodeInternal, "remove sandbox %s: %w", rec.ID, err)
	}
	if rec.Dir != "" {
		removeFiles(rec.Dir)
	}
	e.records.remove(rec)
	return nil
}

// findProcesses looks for the sentry and the gofer of an instance by what only
// the engine can have given them: the name of a role, the bundle and the id.
func findProcesses(rec record) []processID {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	roles := []string{early.FirstSentry, early.Sentry, early.FirstGofer, early.Gofer}
	var found []processID
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
			if start, err := startTime(pid); err == nil {
				found = append(found, processID{pid, start})
			}
		}
	}
	return found
}

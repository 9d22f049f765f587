//go:build linux

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Recover is Recover of an engine. Open finds the instance of a record; os.ErrProcessDone says
// that it is dead, then destroy removes what is left.
func Recover[R Record](ctx context.Context, state []byte, open func(rec R, state []byte) (engine.Instance, error), destroy func(context.Context, R) error) (engine.Instance, error) {
	rec, err := Decode[R](state)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox: %w", err)
	}
	_, id := rec.Names()
	err = os.ErrProcessDone
	if !rec.Outlived() {
		var i engine.Instance
		if i, err = open(rec, bytes.Clone(state)); err == nil {
			return i, nil
		}
	}
	if !errors.Is(err, os.ErrProcessDone) {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox %s: %w", id, err)
	}
	if err := destroy(ctx, rec); err != nil {
		return nil, err
	}
	return nil, api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", id)
}

// Remains are the records of an owner for a Sweep, and one for each cgroup of the owner that no
// record names: of an instance whose state directory was lost, or that was in a pool.
func Remains[R Record](records Records[R], groups cgroup.Maker, owner string) ([]R, error) {
	if !engine.SafeName(owner) {
		return nil, api.Errorf(api.CodeInternal, "sweep: owner %q is not safe as a file name", owner)
	}
	recs, err := records.List(owner)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "sweep: %w", err)
	}
	for id, dirs := range groups.Orphans(owner) {
		if !slices.ContainsFunc(recs, func(rec R) bool { return rec.HasName(id) }) {
			recs = append(recs, records.Blank(Head{ID: id, Owner: owner, Cgroups: dirs}))
		}
	}
	return recs, nil
}

// Kill kills the processes of a sandbox that are alive and waits for their death.
func Kill(ctx context.Context, sandbox string, ids ...pidfd.ID) error {
	return KillBy(ctx, sandbox, func(p *pidfd.Process, _ int) error {
		p.Kill()
		return p.Wait(ctx)
	}, ids...)
}

// KillBy is Kill by a function that kills a process and waits for it. The function gets the process and
// its index in ids.
func KillBy(ctx context.Context, sandbox string, kill func(p *pidfd.Process, n int) error, ids ...pidfd.ID) error {
	for n, id := range ids {
		p, err := pidfd.Find(id)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return RemoveError(sandbox, err)
		}
		if err := kill(p, n); err != nil {
			return RemoveError(sandbox, fmt.Errorf("kill process: %w", err))
		}
		p.Close()
	}
	return nil
}

// RemoveError is the error of a removal by a record.
func RemoveError(sandbox string, err error) error {
	return api.Errorf(api.CodeInternal, "remove sandbox %s: %w", sandbox, err)
}

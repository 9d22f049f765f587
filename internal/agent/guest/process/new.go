//go:build linux

package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
)

// New prepares what starts processes. Limits are descriptors of the engine's cgroups,
// which each process joins; port is the agent's own.
func New(cfg agent.Config, id identity.Identity, users *identity.Users, limits [launcher.MaxLimits]int32, port int) (*Manager, error) {
	if !isInit() {
		// Orphans come to the agent, as they do to a first process.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("adopt orphans: %w", err)
		}
	}
	rootGroups(limits)
	g, err := cgroups(cfg, id)
	if err != nil {
		return nil, err
	}
	ring := cfg.RingBytes
	if ring <= 0 {
		ring = agent.DefaultRingBytes
	}
	t := newTable()
	if cfg.Confine {
		if t.confined, err = confineThread(id.Only, func(pid int) bool { return t.child(pid) != nil }); err != nil {
			return nil, fmt.Errorf("confine processes: %w", err)
		}
	}
	if g != nil {
		t.orphaned = g.sweep
	}
	logs := cfg.LogBytes
	if logs <= 0 {
		logs = agent.DefaultLogBytes
	}
	ps := &Manager{
		table: t, groups: g, users: users, clock: newClock(), budget: &output.Budget{Max: logs}, ring: ring, port: port,
		repeats: newRepeats(), byID: map[string]*process{},
	}
	ps.wg.Go(t.reap)
	ps.pool = newPool(t, g, id, limits)
	ps.feed = newFeed(func() []*process {
		all, _ := ps.chosen("")
		return all
	})
	return ps, nil
}

// LimitPids sets another pids limit than New did. New must have set one.
func (ps *Manager) LimitPids(limit int64) error {
	if ps.groups == nil || limit <= 0 {
		return errors.New("the pids limit needs cgroups, which the early configuration excludes")
	}
	return ps.groups.limitPids(limit)
}

// cgroups opens the processes' cgroups; none is fine where no limit needs them.
func cgroups(cfg agent.Config, id identity.Identity) (*groups, error) {
	if cfg.NoCgroup || !id.Privileged {
		if cfg.PidsMax > 0 {
			return nil, errors.New("a pids limit needs cgroups, which the configuration excludes")
		}
		return nil, nil
	}
	var shown shownLimits
	if !cfg.KernelGuardsInit {
		// The kernel is the sandbox's own.
		shown = limitsOf(cfg)
		shown.narrow()
	}
	g, err := openGroups(cfg.PidsMax, shown, id)
	if err != nil && cfg.PidsMax > 0 {
		return nil, fmt.Errorf("enforce the pids limit: %w", err)
	}
	if err == nil && cfg.KernelGuardsInit && cfg.PidsMax > 0 {
		g.shown = limitsOf(cfg).handDown(g.job)
	}
	if err != nil {
		return nil, nil // trees are walked instead
	}
	return g, nil
}

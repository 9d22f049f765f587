//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
)

// Agent is the program inside one sandbox.
type Agent struct {
	token     []byte
	versions  []int // of the protocol, newest first
	id        identity.Identity
	users     *identity.Users
	procs     *processes
	repeats   *repeats
	conns     *conns
	rules     restrictions
	listeners listeners
	// confined makes the sockets that programs connect to; nil is any thread.
	confined *confined
	tools    chan struct{} // a place for each file tool at work
	// given: the engine gave more than a configuration, and what connects comes from the
	// host itself.
	given bool
	// first and spare are connections that the agent was born with; nil is none.
	first, spare net.Conn
	wg           sync.WaitGroup
}

// newAgent takes the agent's identity and prepares what starts processes. Given says
// that the engine gave it more than a configuration.
func newAgent(cfg agent.Config, versions []int, given bool) (*Agent, error) {
	id, err := identity.Harden(cfg.KernelGuardsInit, cfg.SingleUser, cfg.Confine)
	if err != nil {
		return nil, err
	}
	if !isInit() {
		// Orphans come to the agent, as they do to a first process.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("adopt orphans: %w", err)
		}
	}
	limits := givenGroups(given)
	rootGroups(limits)
	g, err := cgroups(cfg, id)
	if err != nil {
		return nil, err
	}
	us := &identity.Users{Single: cfg.SingleUser, Normal: cfg.User, Adopts: cfg.SingleUser && id.UserNS >= 0}
	if !id.Privileged {
		us.Self = &identity.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: "/"}
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
	a := &Agent{token: cfg.Token, versions: versions, id: id, users: us, repeats: newRepeats(), conns: newConns(), tools: make(chan struct{}, maxTools), given: given}
	a.wg.Go(t.reap)
	ps := &processes{
		table: t, groups: g, users: us, clock: newClock(), budget: &budget{max: logs}, ring: ring, port: portOf(cfg),
		pool: newPool(t, g, id, limits), byID: map[string]*process{},
	}
	ps.feed = newFeed(func() []*process {
		all, _ := ps.chosen("")
		return all
	})
	a.procs, a.confined = ps, t.confined
	return a, nil
}

// portOf is the port that the agent listens on.
func portOf(cfg agent.Config) int {
	if cfg.Port == 0 {
		return agent.Port
	}
	return cfg.Port
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

// serve accepts connections until the listener fails, which it does not.
func (a *Agent) serve(ln net.Listener) error {
	if a.first != nil {
		a.wg.Go(func() { a.handle(a.first) })
	}
	if a.spare != nil {
		a.wg.Go(func() { a.handleSpare(a.spare) })
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		a.wg.Go(func() { a.handle(conn) })
	}
}

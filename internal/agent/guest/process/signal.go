//go:build linux

package process

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// deadly are the signals that end a restart policy: who sends one wants an end.
const deadly = 1<<unix.SIGTERM | 1<<unix.SIGKILL | 1<<unix.SIGINT | 1<<unix.SIGQUIT | 1<<unix.SIGHUP

func errEnded(id string) error {
	return api.Errorf(api.CodeState, "process %q has ended already", id)
}

// Signal sends a signal to the process of that id, its group or its tree.
// Forestall is the field of api.SignalRequest.
func (ps *Manager) Signal(id string, number int, scope api.SignalScope, forestall bool) error {
	if number <= 0 || number > launcher.LastSignal {
		return api.Invalid("signal", "signal %d does not exist", number)
	}
	sig := unix.Signal(number)
	p, err := ps.target(id, sig, forestall)
	if err != nil {
		return err
	}
	p.mu.Lock()
	r, state := p.run, p.state
	p.mu.Unlock()
	if sig < 32 && deadly>>uint(sig)&1 != 0 {
		p.noMore()
		if state == api.ProcessBackoff {
			return nil // it is not started again
		}
	}
	if state == api.ProcessBackoff {
		return api.Errorf(api.CodeState, "process %q is between two runs, and gets only signals that end it", id)
	}
	switch scope {
	case "", api.ScopeTree:
		return ps.signalTree(p, r, sig)
	case api.ScopeGroup:
		err = ps.signalGroup(r, sig)
	case api.ScopeProcess:
		err = ps.table.signal(r.child, sig, false)
	default:
		return api.Invalid("scope", "scope %.20q of a signal", string(scope)).WithHint("tree, group or process")
	}
	if errors.Is(err, unix.ESRCH) {
		return errEnded(id)
	}
	return err
}

// Restored signals the processes that want to know that they continue from saved memory.
// No caller reattaches to what a copy of the memory has.
func (ps *Manager) Restored() {
	ps.releaseStreams()
	for _, p := range ps.all() {
		if p.managed == nil || p.managed.restored == 0 {
			continue
		}
		p.mu.Lock()
		r, state := p.run, p.state
		p.mu.Unlock()
		if r != nil && !state.Ended() && state != api.ProcessBackoff {
			_ = ps.table.signal(r.child, unix.Signal(p.managed.restored), false) // it may have ended meanwhile
		}
	}
}

// signalTree signals what a run has started and still runs.
func (ps *Manager) signalTree(p *process, r *run, sig unix.Signal) error {
	var pids []int
	err := error(unix.ENOENT)
	if r.group != nil {
		pids, err = r.group.pids()
	}
	if err != nil {
		pids = treeOf(r)
	}
	if len(pids) == 0 && r.exited() {
		return errEnded(p.id)
	}
	if sig == unix.SIGKILL {
		ps.killTree(r)
	} else {
		signalAll(pids, sig)
	}
	return nil
}

// signalGroup signals the process group of a run; of a terminal, the one in
// front.
func (ps *Manager) signalGroup(r *run, sig unix.Signal) error {
	if r.exited() {
		return unix.ESRCH
	}
	if r.tty == nil {
		return ps.table.signal(r.child, sig, true)
	}
	pgid, err := foreground(r.tty)
	if err != nil {
		return unix.ESRCH // the terminal is gone, and with it what was in front
	}
	if pgid > 1 {
		return unix.Kill(-pgid, sig)
	}
	// The kernel does not say. It knows, though: the terminal's own keys go there.
	if typed, err := typeSignal(r.tty, sig); typed {
		return err
	}
	if onlyGroup(r.child.pid) {
		return ps.table.signal(r.child, sig, true)
	}
	return api.Errorf(api.CodeUnsupported, "this sandbox's kernel does not tell which of the terminal's process groups is in front, and the terminal has no key for %s now", signalName(sig)).
		WithHint("INT, QUIT and TSTP have keys unless the program has switched them off; or signal the process or its tree")
}

// signalRun signals the process group that a run began with.
func (ps *Manager) signalRun(r *run, number int) error {
	if number <= 0 || number > launcher.LastSignal {
		return api.Invalid("signal", "signal %d does not exist", number)
	}
	return ps.table.signal(r.child, unix.Signal(number), true)
}

// killTree kills every process that a run has started.
func (ps *Manager) killTree(r *run) {
	if r.group != nil && r.group.kill() == nil {
		return
	}
	// Stop first what is found, so that it cannot fork away from the walk.
	for range 8 {
		pids := treeOf(r)
		signalAll(pids, unix.SIGSTOP)
		if len(pids) == len(treeOf(r)) {
			signalAll(pids, unix.SIGKILL)
			break
		}
	}
	_ = ps.table.signal(r.child, unix.SIGKILL, true)
	_ = ps.table.signal(r.child, unix.SIGKILL, false)
}

//go:build linux

package process

import (
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Direct is a program that has the descriptors of another program of the sandbox. It has no record: neither
// its output nor its end is kept.
type Direct struct {
	ps   *Manager
	run  *run
	done chan struct{}
}

// StartDirect executes a program with duplicates of three descriptors as its standard streams. If x has a
// terminal, the first is the terminal. The program counts as one that runs.
func (ps *Manager) StartDirect(x *wire.Exec, stdio [3]int) (*Direct, error) {
	x.ID = "direct" // prepare requires a name
	l, err := ps.prepare(x)
	if err != nil {
		return nil, err
	}
	l.hasTTY, l.combined = x.TTY, false
	if err := ps.enterDirect(); err != nil {
		return nil, err
	}
	r, err := ps.launchDirect(l, stdio)
	if err != nil {
		ps.leaveDirect()
		return nil, startError(err, l)
	}
	d := &Direct{ps: ps, run: r, done: make(chan struct{})}
	ps.wg.Go(func() {
		<-r.child.exited
		if r.group != nil {
			r.group.leave()
		}
		ps.leaveDirect()
		close(d.done)
	})
	return d, nil
}

// enterDirect counts a program that has no record.
func (ps *Manager) enterDirect() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch {
	case ps.stopped:
		return errStopping
	case ps.running >= maxRunning:
		return errTooManyRun()
	}
	ps.running++
	return nil
}

func (ps *Manager) leaveDirect() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running--
}

// launchDirect has a launcher execute l.
func (ps *Manager) launchDirect(l launch, stdio [3]int) (*run, error) {
	k, err := ps.pool.parkFor(l.user, &stdio)
	if err != nil {
		return nil, err
	}
	r := &run{child: ps.table.child(k.pid), group: k.group, started: time.Now()}
	if r.child == nil {
		err = &launchError{launcher.StageParking, errKilled}
	} else {
		err = k.start(l)
	}
	if err != nil {
		ps.pool.discard(k)
		return nil, err
	}
	k.group = nil
	ps.pool.release(k)
	return r, nil
}

// Done is closed when the program has ended.
func (d *Direct) Done() <-chan struct{} { return d.done }

// Result is how the program ended, after Done.
func (d *Direct) Result() api.Result {
	var res api.Result
	res.ExitCode, res.Signal = exitOf(d.run.child.status)
	return res
}

// Signal sends a signal to the process group that the program began with.
func (d *Direct) Signal(number int) error { return d.ps.signalRun(d.run, number) }

// Kill kills the program and what it has started.
func (d *Direct) Kill() { d.ps.killTree(d.run) }

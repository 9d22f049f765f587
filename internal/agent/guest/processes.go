//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxEnded is how many ended processes are remembered.
	maxEnded = 256
	// maxEndedBytes bounds the output that is kept of ended processes.
	maxEndedBytes = 32 << 20
	// maxRunning bounds the processes that run: each costs descriptors.
	maxRunning = 4096
)

// processes starts processes and remembers them.
type processes struct {
	table  *table
	pool   *pool
	groups *groups // nil without cgroups
	users  *users
	ring   int64 // bytes of each stream

	mu      sync.Mutex
	byID    map[string]*process
	order   []*process // by start
	running int
	stopped bool
	wg      sync.WaitGroup
}

// start executes a program. It returns when it has been executed, or a
// *cloche.Error that says why not.
func (ps *processes) start(x *wire.Exec, attach *wire.Writer) (*process, error) {
	l, err := ps.prepare(x)
	if err != nil {
		return nil, err
	}
	p := &process{id: x.ID, argv: toStrings(x.Argv), done: make(chan struct{}), rings: [2]*ring{{max: ps.ring}, {max: ps.ring}}}
	if attach != nil {
		p.sink.w = attach
	} else {
		limit := x.MaxOutput
		if limit <= 0 || limit > cloche.MaxMaxOutput {
			limit = cloche.DefaultMaxOutput
		}
		p.collect = newCollector(limit)
	}
	if x.TTY {
		if p.tty, l.tty, err = openTerminal(x.Rows, x.Cols, l.user); err != nil {
			return nil, err
		}
	}
	if err := ps.enter(p); err != nil {
		p.closeTTY()
		return nil, err
	}
	err = ps.launch(p, l)
	for try := 0; errors.Is(err, errKilled) && try < 3; try++ {
		err = ps.launch(p, l) // a process got at the launcher in the moment before the execve
	}
	if err != nil {
		p.closeTTY()
		ps.forget(p)
		return nil, err
	}
	ps.wg.Go(func() { ps.watch(p, time.Duration(x.TimeoutMS)*time.Millisecond) })
	return p, nil
}

func (p *process) closeTTY() {
	if p.tty != nil {
		p.tty.Close()
	}
}

// enter takes the name of p.
func (ps *processes) enter(p *process) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch {
	case ps.stopped:
		return errStopping
	case ps.byID[p.id] != nil:
		return cloche.Errorf(cloche.CodeExists, "a process named %q exists in this sandbox", p.id)
	case ps.running >= maxRunning:
		return cloche.Errorf(cloche.CodeNoCapacity, "%d processes that were started run in this sandbox, which is the most", maxRunning)
	}
	ps.byID[p.id] = p
	ps.running++
	return nil
}

// forget undoes enter for a program that was not executed.
func (ps *processes) forget(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byID, p.id)
	ps.running--
}

// launch has a launcher execute l, and takes over its pipes.
func (ps *processes) launch(p *process, l launch) error {
	k, err := ps.pool.take()
	if err != nil {
		if !errors.Is(err, errStopping) {
			ps.pool.taken <- struct{}{}
		}
		return startError(err, l)
	}
	c := ps.table.child(k.pid)
	p.group = k.group
	p.started = time.Now()
	if c == nil {
		err = &launchError{stageParking, errKilled}
	} else {
		err = k.start(l)
	}
	ps.pool.taken <- struct{}{}
	if err != nil {
		ps.pool.discard(k)
		return startError(err, l)
	}
	stdin, stdout, stderr := k.stdin, k.stdout, k.stderr
	k.stdin, k.stdout, k.stderr, k.group = nil, nil, nil, nil
	ps.pool.release(k)

	ps.mu.Lock()
	p.child = c
	ps.order = append(ps.order, p)
	ps.mu.Unlock()
	if p.tty != nil {
		stdin.Close()
		stdout.Close()
		stderr.Close()
		p.stdin = p.tty
		ps.pump(p, p.tty, outStream)
		return nil
	}
	p.stdin = stdin
	ps.pump(p, stdout, outStream)
	if l.combined {
		stderr.Close()
	} else {
		ps.pump(p, stderr, errStream)
	}
	return nil
}

// pump starts to read a stream. It goes on past the exit while something in the
// background holds the stream, and ends with the sandbox at the latest.
func (ps *processes) pump(p *process, f *os.File, stream int) {
	p.settled.Add(1)
	p.outputs = append(p.outputs, f)
	ps.wg.Go(func() { p.pump(f, stream) })
}

// watch waits for p to end, kills its tree when it takes too long, and files it.
func (ps *processes) watch(p *process, timeout time.Duration) {
	var expired <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-p.child.exited:
	case <-expired:
		p.timedOut.Store(true)
		ps.killTree(p)
		<-p.child.exited
	}
	for _, f := range p.outputs {
		_ = f.SetReadDeadline(time.Now().Add(drainIdle)) // wakes a pump that waits
	}
	p.settled.Wait()
	p.ended = time.Now()
	if p.tty == nil {
		p.closeInput()
	}
	if p.group != nil {
		p.group.leave()
	}
	close(p.done)
	ps.file(p)
}

// file makes room for p among the ended.
func (ps *processes) file(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running--
	var bytes int64
	ended := 0
	// From the newest: what is too much is the oldest's.
	kept := ps.order[:0:0]
	for _, q := range slices.Backward(ps.order) {
		select {
		case <-q.done:
		default:
			kept = append(kept, q)
			continue
		}
		if ended++; ended > maxEnded {
			delete(ps.byID, q.id)
			continue
		}
		for _, r := range q.rings {
			r.mu.Lock()
			bytes += r.held
			r.mu.Unlock()
			if bytes > maxEndedBytes {
				bytes -= r.drop()
			}
		}
		kept = append(kept, q)
	}
	slices.Reverse(kept)
	ps.order = kept
}

// killTree kills every process that p has started.
func (ps *processes) killTree(p *process) {
	if p.group != nil && p.group.kill() == nil {
		return
	}
	// Stop first what is found, so that it cannot fork away from the walk.
	for range 8 {
		pids := tree(p.child.pid)
		signalAll(pids, unix.SIGSTOP)
		if len(pids) == len(tree(p.child.pid)) {
			signalAll(pids, unix.SIGKILL)
			break
		}
	}
	_ = ps.table.signal(p.child, unix.SIGKILL, true)
	_ = ps.table.signal(p.child, unix.SIGKILL, false)
}

// signal sends sig to the whole tree of the process of that id.
func (ps *processes) signal(id string, number int) error {
	if number <= 0 || number > lastSignal {
		return cloche.Invalid("signal", "signal %d does not exist", number)
	}
	sig := unix.Signal(number)
	ps.mu.Lock()
	p := ps.byID[id]
	known := p != nil && p.child != nil
	ps.mu.Unlock()
	if !known {
		return cloche.Errorf(cloche.CodeNotFound, "no process %q is on record in this sandbox", id)
	}
	if sig == unix.SIGKILL {
		ps.killTree(p)
		return nil
	}
	if p.group != nil {
		pids, err := p.group.pids()
		if err == nil {
			if len(pids) == 0 {
				return errEnded(id)
			}
			signalAll(pids, sig)
			return nil
		}
	}
	if p.exited() {
		return errEnded(id)
	}
	signalAll(tree(p.child.pid), sig)
	return nil
}

func errEnded(id string) error {
	return cloche.Errorf(cloche.CodeState, "process %q has ended already", id)
}

// list returns the records in order of start.
func (ps *processes) list() []cloche.Process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make([]cloche.Process, 0, len(ps.order))
	for _, p := range ps.order {
		out = append(out, p.record())
	}
	return out
}

// chosen returns the processes with that id, all for "".
func (ps *processes) chosen(id string) ([]*process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if id == "" {
		return slices.Clone(ps.order), nil
	}
	p := ps.byID[id]
	if p == nil || p.child == nil {
		return nil, cloche.Errorf(cloche.CodeNotFound, "no process %q is on record in this sandbox", id)
	}
	return []*process{p}, nil
}

// terminate ends every process: TERM, then KILL for what is left after grace.
func (ps *processes) terminate(grace time.Duration) {
	ps.mu.Lock()
	first := !ps.stopped
	ps.stopped = true
	ps.mu.Unlock()
	if first {
		ps.pool.close()
		ps.table.stop()
	}
	ps.signalEach(unix.SIGTERM)
	ps.signalEach(unix.SIGCONT)
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-ps.table.idle:
	case <-t.C:
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for gone := false; !gone; {
			ps.signalEach(unix.SIGKILL)
			select {
			case <-ps.table.idle:
				gone = true
			case <-tick.C: // what forked meanwhile
			}
		}
	}
	unix.Sync()
}

// signalEach signals every process but the agent.
func (ps *processes) signalEach(sig unix.Signal) {
	if isInit() {
		_ = unix.Kill(-1, sig)
		return
	}
	signalAll(slices.DeleteFunc(tree(os.Getpid()), func(pid int) bool { return pid == os.Getpid() }), sig)
}

// openTerminal makes a terminal that belongs to u. The path is of its other side.
func openTerminal(rows, cols uint16, u user) (*os.File, string, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", cloche.Errorf(cloche.CodeUnsupported, "this sandbox has no terminals: %w", fmt.Errorf("open /dev/ptmx: %w", err))
	}
	f := os.NewFile(uintptr(fd), "/dev/ptmx")
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = resize(f, rows, cols)
	}
	path := "/dev/pts/" + strconv.FormatUint(uint64(n), 10)
	if err == nil && u.uid != 0 {
		if err = os.Chown(path, int(u.uid), int(u.gid)); errors.Is(err, unix.EPERM) {
			err = nil // a terminal of the agent's own user
		}
	}
	if err != nil {
		f.Close()
		return nil, "", internal("make terminal", err)
	}
	return f, path, nil
}

// resize sets the size of a terminal; zeros leave it.
func resize(f *os.File, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ioErr error
	err = raw.Control(func(fd uintptr) {
		ioErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, ioErr)
}

// signalGroup signals the process group of p: what a terminal's ^C would reach.
func (ps *processes) signalGroup(p *process, number int) error {
	if number <= 0 || number > lastSignal {
		return cloche.Invalid("signal", "signal %d does not exist", number)
	}
	return ps.table.signal(p.child, unix.Signal(number), true)
}

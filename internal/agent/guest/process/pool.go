//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// parked is the agent's side of one launcher: it owns the memory and its ends of
// the pipes.
type parked struct {
	*launcher.Launcher
	mem   []byte
	pid   int
	group *group // nil without cgroups
	// pooled: the pool waits to be told what became of it.
	pooled bool
	// confined has forked it; nil is any thread.
	confined *confined
	stdin    *os.File
	stdout   *os.File
	stderr   *os.File
	// command and outcome are read and written raw; no poller is involved.
	command, outcome int
}

// pool keeps one launcher parked, and makes the next when it is taken.
type pool struct {
	table  *table
	groups *groups // nil without cgroups
	id     identity.Identity
	limits [launcher.MaxLimits]int32 // of the engine's groups
	noFile unix.Rlimit
	// numbers are the namespaces of users of a sandbox with one id.
	numbers *numbers

	ready chan made
	// taken gets what became of each launcher that was taken: the child that it
	// started, nil for none.
	taken chan *child
	// wanted is a caller that waits for a launcher.
	wanted chan struct{}
	quit   chan struct{}
	wg     sync.WaitGroup

	mu    sync.Mutex
	spare [][]byte // memory of launchers that have ended
}

type made struct {
	p   *parked
	err error
}

func newPool(t *table, g *groups, id identity.Identity, limits [launcher.MaxLimits]int32) *pool {
	p := &pool{table: t, groups: g, id: id, limits: limits, noFile: fileLimit(), numbers: newNumbers(t), ready: make(chan made), taken: make(chan *child, 1), wanted: make(chan struct{}, 1), quit: make(chan struct{})}
	p.wg.Go(p.run)
	return p
}

// fileLimit is the processes' limit of open files. The runtime raises the
// agent's own to the maximum, with which old programs that close every possible
// descriptor take seconds.
func fileLimit() unix.Rlimit {
	const soft = 64 << 10
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return unix.Rlimit{Cur: 1024, Max: 4096}
	}
	lim.Cur = min(lim.Max, soft)
	return lim
}

func (p *pool) run() {
	for {
		l, err := p.park(p.id.UserNS, nil)
		if l != nil {
			l.pooled = true
		}
		select {
		case p.ready <- made{l, err}:
			p.rest(<-p.taken)
		case <-p.quit:
			if l != nil {
				p.discard(l)
			}
			return
		}
	}
}

// A launcher without a waiting caller is made this long after the program before it
// has ended, or has started.
const (
	shortestRest = 1500 * time.Microsecond
	longestRest  = 20 * time.Millisecond
)

// rest waits until the program that was started has ended, so that the next
// launcher is not made while it starts: under gVisor the two would take the
// processors from each other.
func (p *pool) rest(started *child) {
	if started == nil {
		return
	}
	select {
	case <-p.wanted: // by the caller that has it now
	default:
	}
	t := time.NewTimer(longestRest)
	defer t.Stop()
	ended := started.exited
	for {
		select {
		case <-ended:
			ended = nil
			t.Reset(shortestRest)
			continue
		case <-p.wanted:
		case <-t.C:
		case <-p.quit:
		}
		return
	}
}

// take returns a parked launcher.
func (p *pool) take() (*parked, error) {
	select {
	case m := <-p.ready:
		return m.p, m.err
	default:
	}
	select {
	case p.wanted <- struct{}{}:
	default:
	}
	select {
	case m := <-p.ready:
		return m.p, m.err
	case <-p.quit:
		return nil, errStopping
	}
}

// takeFor returns a launcher for programs of a user. One for the namespace of a number is
// made when it is asked for.
func (p *pool) takeFor(u identity.User) (*parked, error) {
	if u.Shown == nil {
		return p.take()
	}
	return p.parkFor(u, nil)
}

// parkFor makes a launcher for programs of a user; stdio is as for park.
func (p *pool) parkFor(u identity.User, stdio *[3]int) (l *parked, err error) {
	if u.Shown == nil {
		return p.park(p.id.UserNS, stdio)
	}
	err = p.numbers.with(*u.Shown, func(userNS int) (err error) {
		l, err = p.park(userNS, stdio)
		return err
	})
	return l, err
}

// settle says what became of a launcher that was taken: the child that it started, nil for
// none.
func (p *pool) settle(l *parked, started *child) {
	if l == nil || l.pooled {
		p.taken <- started
	}
}

// close ends the parked launcher. take fails from now on.
func (p *pool) close() {
	close(p.quit)
	p.wg.Wait()
}

// park makes a launcher that enters the user namespace userNS before it executes, unless that is -1. Its
// program gets duplicates of stdio, or pipes if stdio is nil.
func (p *pool) park(userNS int, stdio *[3]int) (_ *parked, err error) {
	l := &parked{command: -1, outcome: -1}
	var childEnds []int
	defer func() {
		for _, fd := range childEnds {
			unix.Close(fd)
		}
		if err != nil {
			p.release(l)
		}
	}()
	if err := p.memory(l); err != nil {
		return nil, err
	}
	pipe := func(parentReads bool) (parent, child int, err error) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return -1, -1, os.NewSyscallError("pipe2", err)
		}
		if !parentReads {
			fds[0], fds[1] = fds[1], fds[0]
		}
		childEnds = append(childEnds, fds[1])
		return fds[0], fds[1], nil
	}
	var child [5]int
	parent := [5]int{-1, -1, -1, -1, -1}
	first := 0
	if stdio != nil {
		first = copy(child[:], stdio[:])
	}
	for i := first; i < len(child); i++ {
		if parent[i], child[i], err = pipe(i == 1 || i == 2 || i == 4); err != nil {
			for _, fd := range parent[first:i] {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("make pipes: %w", err)
		}
	}
	for i, f := range []**os.File{&l.stdin, &l.stdout, &l.stderr} {
		if stdio != nil {
			break
		}
		_ = unix.SetNonblock(parent[i], true)
		// A larger pipe means fewer turns for bulk output; it is no matter if the
		// kernel refuses it.
		_, _ = unix.FcntlInt(uintptr(parent[i]), unix.F_SETPIPE_SZ, pipeBytes)
		*f = os.NewFile(uintptr(parent[i]), "pipe")
	}
	l.command, l.outcome = parent[3], parent[4]
	*l.Launcher = launcher.Launcher{
		UserNS: int32(userNS), Stdin: int32(child[0]), Stdout: int32(child[1]), Stderr: int32(child[2]),
		Command: int32(child[3]), Outcome: int32(child[4]),
		GroupFDs: p.limits, NoFile: p.noFile, SetCaps: p.id.Privileged, Bound: p.id.Caps(), SetIDs: p.id.Privileged && !p.id.Only,
	}
	l.Keep = [3]int32{l.UserNS, l.Launcher.Command, l.Launcher.Outcome}
	slices.Sort(l.Keep[:])
	if p.groups != nil {
		if l.group, err = p.groups.make(); err != nil {
			return nil, err
		}
	}
	if err := p.table.fork(l); err != nil {
		return nil, fmt.Errorf("fork launcher: %w", err)
	}
	return l, nil
}

// memory gives l memory, used or new.
func (p *pool) memory(l *parked) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.spare); n > 0 {
		l.mem = p.spare[n-1]
		p.spare = p.spare[:n-1]
		l.Launcher = (*launcher.Launcher)(unsafe.Pointer(unsafe.SliceData(l.mem)))
		return nil
	}
	var err error
	l.Launcher, l.mem, err = launcher.NewMemory()
	return err
}

// discard ends a launcher that is not needed: without its command pipe it exits.
func (p *pool) discard(l *parked) {
	unix.Close(l.command)
	l.command = -1
	_ = l.awaitOutcome()
	p.release(l)
}

// release gives back what l holds but its pipes of a program that runs, which
// start has taken out of it. Its process must not use the memory any more.
func (p *pool) release(l *parked) {
	for _, f := range []*os.File{l.stdin, l.stdout, l.stderr} {
		if f != nil {
			f.Close()
		}
	}
	for _, fd := range []*int{&l.command, &l.outcome} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	if l.group != nil {
		l.group.leave()
	}
	if l.mem != nil {
		p.mu.Lock()
		p.spare = append(p.spare, l.mem)
		p.mu.Unlock()
		l.mem, l.Launcher = nil, nil
	}
}

// pipeBytes is how much a program can write ahead.
const pipeBytes = 1 << 20

// launch is what a launcher is told.
type launch struct {
	paths, argv, env []string
	cwd              string
	tty              string
	hasTTY           bool // stdin is the terminal
	combined         bool
	user             identity.User
}

// launchTimeout bounds how long an execve may take. A process of the same uid can
// stop a launcher just before it executes.
const launchTimeout = 30 * time.Second

// nudge is how soon a launcher that does not come on is continued.
const nudge = 50 * time.Millisecond

// launchError is why a program was not executed.
type launchError struct {
	at  launcher.Stage
	err error
}

func (e *launchError) Error() string { return e.err.Error() }
func (e *launchError) Unwrap() error { return e.err }

// start tells the launcher what to execute and waits until it has, or why not.
func (l *parked) start(x launch) error {
	if l.group != nil {
		if err := l.group.enter(l.pid); err != nil {
			return err
		}
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	vector := func(ss []string) (**byte, error) {
		ptrs := make([]*byte, len(ss)+1)
		for i, s := range ss {
			b, err := unix.BytePtrFromString(s)
			if err != nil {
				return nil, err
			}
			pin.Pin(b)
			ptrs[i] = b
		}
		pin.Pin(&ptrs[0])
		return &ptrs[0], nil
	}
	var errs [5]error
	var one **byte
	l.Paths, errs[0] = vector(x.paths)
	l.Argv, errs[1] = vector(x.argv)
	l.Env, errs[2] = vector(x.env)
	one, errs[3] = vector([]string{x.cwd})
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	l.Cwd = *one
	if x.tty != "" {
		if one, errs[4] = vector([]string{x.tty}); errs[4] != nil {
			return errs[4]
		}
		l.Launcher.Tty = *one
	}
	groups := make([]uint32, len(x.user.Groups)+1)
	ids, n := x.user.IDs(), copy(groups, x.user.Groups)
	if x.user.Shown != nil {
		groups[0], n = ids.GID, 1
		l.Bound = 0
	}
	pin.Pin(&groups[0])
	l.Groups, l.NGroups = &groups[0], uintptr(n)
	l.UID, l.GID, l.Combined, l.HasTTY = uintptr(ids.UID), uintptr(ids.GID), x.combined, x.hasTTY
	l.Caps = 0
	if x.user.Root() {
		l.Caps = l.Bound
	}
	if l.confined != nil && x.user.Shown != nil {
		l.confined.joining.add(l)
		defer l.confined.joining.remove(l)
	}
	if _, err := unix.Write(l.command, []byte{1}); errors.Is(err, unix.EPIPE) {
		return &launchError{launcher.StageParking, errKilled}
	} else if err != nil {
		return &launchError{launcher.StageParking, os.NewSyscallError("write", err)}
	}
	if err := l.awaitOutcome(); err != nil {
		return err
	}
	if l.confined != nil {
		l.confined.oom.raise(l.pid)
	}
	return nil
}

// awaitOutcome waits until the launcher has executed or ended: either closes its
// end of the outcome pipe.
func (l *parked) awaitOutcome() error {
	deadline := time.Now().Add(launchTimeout)
	for {
		fds := []unix.PollFd{{Fd: int32(l.outcome), Events: unix.POLLIN}}
		wait := max(min(time.Until(deadline), nudge), 0)
		n, err := unix.Poll(fds, int(wait/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil && time.Now().Before(deadline) {
			// A process of the same uid may have stopped it on its way.
			_ = unix.Kill(l.pid, unix.SIGCONT)
			continue
		}
		if n == 0 || err != nil {
			// The launcher may still use the memory: it dies first.
			_ = unix.Kill(l.pid, unix.SIGKILL)
			deadline = time.Now().Add(launchTimeout)
			continue
		}
		break
	}
	if l.Stage >= launcher.StageFailed {
		return &launchError{l.Stage - launcher.StageFailed, l.Errno}
	}
	if l.Stage != launcher.StageExec && l.command >= 0 {
		return &launchError{launcher.StageParking, errKilled}
	}
	return nil
}

//go:build linux

package process

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxEnded is how many ended execs are remembered.
	maxEnded = 256
	// maxRunning bounds the processes that run: each costs descriptors.
	maxRunning = 4096
	// MaxManaged bounds the managed processes that have not ended.
	MaxManaged = 1024
	// MaxEndedManaged is how many of those that have are remembered: some more
	// than a daemon keeps, so that it chooses.
	MaxEndedManaged = 1024 + 64
	// filedTime bounds what a terminate waits for records after the last process.
	filedTime = 2 * time.Second
)

// Manager starts processes and remembers them.
type Manager struct {
	table  *table
	pool   *pool
	groups *groups // nil without cgroups
	users  *identity.Users
	clock  *clock
	feed   *feed
	budget *output.Budget
	ring   int64 // bytes of each stream
	port   int   // the agent's own
	// repeats are the execs that a caller may ask for again.
	repeats *repeats

	mu      sync.Mutex
	byID    map[string]*process
	order   []*process // by start
	running int
	managed int // of those that run
	killed  killedIDs
	stopped bool
	wg      sync.WaitGroup

	reclaiming sync.Mutex
	holds      atomic.Int64
}

// newProcess makes the record of a process that is not started yet.
func (ps *Manager) newProcess(x *wire.Exec, block bool) *process {
	return &process{
		id: x.ID, key: x.Key, argv: recordedArgv(x.Argv), hasTTY: x.TTY, state: api.ProcessStarting, feed: ps.feed, reclaim: ps.reclaim,
		log: output.NewLog(2*ps.ring, block, ps.budget), input: newInput(x.TTY), rows: x.Rows, cols: x.Cols,
		launched: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
	}
}

// maxRecordedArgv bounds what a record keeps of an argument list.
const maxRecordedArgv = 16 << 10

func recordedArgv(argv []api.Bytes) []string {
	left := maxRecordedArgv
	var out []string
	for _, a := range argv {
		if left -= len(a) + 16; left < 0 {
			return append(out, "…")
		}
		out = append(out, string(a))
	}
	return out
}

// start executes a program. It returns when it has been executed, or a
// *api.Error that says why not.
func (ps *Manager) start(x *wire.Exec, attach *wire.Writer) (*process, error) {
	l, err := ps.prepare(x)
	if err != nil {
		return nil, err
	}
	p := ps.newProcess(x, false)
	if attach != nil {
		p.sink.w = attach
	} else {
		limit := x.MaxOutput
		if limit <= 0 || limit > api.MaxMaxOutput {
			limit = api.DefaultMaxOutput
		}
		p.collect = output.NewCollector(limit)
	}
	if err := ps.enter(p); err != nil {
		return nil, err
	}
	r, err := ps.launch(p, l)
	if err != nil {
		ps.forget(p)
		return nil, err
	}
	ps.list(p)
	ps.wg.Go(func() {
		ps.await(p, r, time.Duration(x.TimeoutMS)*time.Millisecond)
		ps.finish(p, api.ProcessExited, "")
	})
	return p, nil
}

// enter takes the name of p.
func (ps *Manager) enter(p *process) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch {
	case ps.stopped:
		return errStopping
	case ps.byID[p.id] != nil:
		return errExists(p.id)
	case ps.killed.has(p.id, p.managed != nil):
		return errKilledBefore(p.id)
	case ps.running >= maxRunning:
		return errTooManyRun()
	case p.managed != nil && ps.managed >= MaxManaged:
		return api.Errorf(api.CodeNoCapacity, "%d managed processes live in this sandbox, which is the most", MaxManaged).
			WithHint("end or remove one, or use another sandbox; those that have ended do not count")
	}
	ps.byID[p.id] = p
	ps.running++
	if p.managed != nil {
		ps.managed++
	}
	return nil
}

func errTooManyRun() *api.Error {
	return api.Errorf(api.CodeNoCapacity, "%d processes that were started run in this sandbox, which is the most", maxRunning)
}

func errExists(id string) *api.Error {
	return api.Errorf(api.CodeExists, "a process named %q exists in this sandbox", id).
		WithHint("choose another id, or remove that process; one that has ended keeps its id until then")
}

// forget undoes enter for a program that was not executed.
func (ps *Manager) forget(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byID, p.id)
	ps.running--
	if p.managed != nil {
		ps.managed--
	}
	close(p.launched)
}

// list puts a process on record whose program has been executed.
func (ps *Manager) list(p *process) {
	ps.mu.Lock()
	ps.order = append(ps.order, p)
	close(p.launched)
	ps.mu.Unlock()
}

// launch executes l as the next run of p.
func (ps *Manager) launch(p *process, l launch) (*run, error) {
	var r *run
	err := errKilled
	for try := 0; errors.Is(err, errKilled) && try < 4; try++ {
		r, err = ps.launchOnce(p, l) // again: a process got at the launcher in the moment before the execve
	}
	return r, err
}

// launchOnce has a launcher execute l, and takes over its pipes.
func (ps *Manager) launchOnce(p *process, l launch) (*run, error) {
	r := &run{over: make(chan struct{})}
	if p.hasTTY {
		p.mu.Lock()
		rows, cols := p.rows, p.cols
		p.mu.Unlock()
		var err error
		if r.tty, l.tty, err = openTerminal(rows, cols, l.user); err != nil {
			return nil, err
		}
	}
	k, err := ps.pool.takeFor(l.user)
	if err != nil {
		if l.user.Shown == nil && !errors.Is(err, errStopping) {
			ps.pool.settle(nil, nil)
		}
		r.closeTTY()
		return nil, startError(err, l)
	}
	c := ps.table.child(k.pid)
	r.child, r.group, r.started = c, k.group, time.Now()
	if c == nil {
		err = &launchError{launcher.StageParking, errKilled}
	} else {
		err = k.start(l)
	}
	if err != nil {
		ps.pool.settle(k, nil)
		ps.pool.discard(k)
		r.closeTTY()
		return nil, startError(err, l)
	}
	ps.pool.settle(k, c)
	stdin, stdout, stderr := k.stdin, k.stdout, k.stderr
	k.stdin, k.stdout, k.stderr, k.group = nil, nil, nil, nil
	ps.pool.release(k)
	in, outputs := stdin, []*os.File{stdout, stderr}
	switch {
	case r.tty != nil:
		stdin.Close()
		stdout.Close()
		stderr.Close()
		in, outputs = r.tty, []*os.File{r.tty}
	case l.combined:
		stderr.Close()
		outputs = []*os.File{stdout}
	}
	// A caller that sees it running can write to it.
	p.input.attach(in)
	ps.begin(p, r)
	ps.pump(p, r, outputs...)
	return r, nil
}

func (r *run) closeTTY() {
	if r.tty != nil {
		r.tty.Close()
	}
}

// begin enters a run into the record.
func (ps *Manager) begin(p *process, r *run) {
	p.log.Begin()
	p.set(func() {
		if p.run != nil {
			p.restarts++
		}
		p.run, p.state, p.started = r, api.ProcessRunning, r.started
		p.readyAt, p.known, p.timedOut, p.reason = nil, false, false, ""
	})
}

// pump starts to read the streams. It goes on past the exit while something in
// the background holds a stream, and ends with the sandbox at the latest.
func (ps *Manager) pump(p *process, r *run, fs ...*os.File) {
	r.settled.Add(len(fs))
	for _, f := range fs {
		r.outputs = append(r.outputs, output.NewReader(f, f != r.tty))
	}
	for stream, o := range r.outputs {
		ps.wg.Go(func() { p.pump(r, o, stream) })
	}
}

// await waits for a run to end, and kills its tree when it takes too long.
func (ps *Manager) await(p *process, r *run, timeout time.Duration) {
	var expired <-chan struct{}
	if timeout > 0 {
		t := ps.clock.timer(timeout)
		defer t.stop()
		expired = t.C
	}
	select {
	case <-r.child.exited:
	case <-expired:
		r.expired.Store(true)
		ps.killTree(r)
		<-r.child.exited
	}
	p.log.Exit()
	for _, f := range r.outputs {
		_ = f.SetReadDeadline(time.Now().Add(drainIdle)) // wakes a pump that waits
	}
	r.settled.Wait()
	p.input.detach()
	if r.group != nil {
		r.group.leave()
	}
	close(r.over)
	p.mu.Lock()
	p.known, p.status, p.timedOut, p.ended = true, r.child.status, r.expired.Load(), time.Now()
	p.mu.Unlock()
}

// finish files p among those that have ended for good.
func (ps *Manager) finish(p *process, state api.ProcessState, reason string) {
	p.noMore()
	p.input.finish()
	p.set(func() { p.state, p.reason = state, reason })
	close(p.done)
	p.log.Finish()
	ps.file(p)
}

// file counts p as ended, and forgets the oldest that have where there are too
// many.
func (ps *Manager) file(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running--
	if p.managed != nil {
		ps.managed--
		ps.forgetOldest()
		return
	}
	ended := 0
	for _, p := range slices.Backward(ps.order) {
		if p.managed == nil && p.isDone() {
			if ended++; ended > maxEnded {
				delete(ps.byID, p.id)
				p.log.Discard()
			}
		}
	}
	if ended > maxEnded {
		ps.order = slices.DeleteFunc(ps.order, func(p *process) bool { return ps.byID[p.id] != p })
	}
}

// forgetOldest forgets the managed processes that ended first where there are
// too many. The caller holds ps.mu.
func (ps *Manager) forgetOldest() {
	var ended []*process
	for _, p := range ps.order {
		if p.managed != nil && p.isDone() {
			ended = append(ended, p)
		}
	}
	if len(ended) <= MaxEndedManaged {
		return
	}
	slices.SortStableFunc(ended, func(a, b *process) int { return a.endedAt().Compare(b.endedAt()) })
	for _, p := range ended[:len(ended)-MaxEndedManaged] {
		ps.dropLocked(p)
	}
}

func (p *process) endedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// reclaim shrinks logs when all of them together hold too much: first those that ended first, then
// the largest of those that run.
func (ps *Manager) reclaim() {
	if !ps.reclaiming.TryLock() {
		return
	}
	defer ps.reclaiming.Unlock()
	procs, _ := ps.chosen("")
	ended := slices.DeleteFunc(slices.Clone(procs), func(p *process) bool { return !p.isDone() })
	slices.SortStableFunc(ended, func(a, b *process) int { return a.endedAt().Compare(b.endedAt()) })
	enough := ps.budget.Max / 8 * 7
	for _, p := range ended {
		if ps.budget.Used.Load() <= enough {
			return
		}
		p.log.Shrink(0)
	}
	running := slices.DeleteFunc(procs, (*process).isDone)
	for share := ps.ring; ps.budget.Used.Load() > enough && share >= output.FloorBytes/2; share /= 2 {
		for _, p := range running {
			p.log.Shrink(max(share, output.FloorBytes))
		}
	}
}

// Records returns the records in order of start.
func (ps *Manager) Records() []api.Process {
	procs, _ := ps.chosen("")
	out := make([]api.Process, 0, len(procs))
	for _, p := range procs {
		out = append(out, p.record())
	}
	return out
}

// chosen returns the processes with that id, all for "".
func (ps *Manager) chosen(id string) ([]*process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if id == "" {
		return slices.Clone(ps.order), nil
	}
	p := ps.byID[id]
	if p == nil || p.present() == nil {
		return nil, api.Errorf(api.CodeNotFound, "no process %q is on record in this sandbox", id)
	}
	return []*process{p}, nil
}

// find returns the process with that id.
func (ps *Manager) find(id string) (*process, error) {
	if id == "" {
		return nil, api.Invalid("exec_id", "the request names no process")
	}
	found, err := ps.chosen(id)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// remove kills the tree of a process and forgets it.
func (ps *Manager) remove(ctx context.Context, id string) error {
	p, err := ps.find(id)
	if err != nil {
		return err
	}
	for p.noMore(); ; {
		ps.killTree(p.present())
		// Again: the tree may grow, and another run may just have begun.
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-p.done:
			t.Stop()
			ps.killTree(p.present())
			ps.drop(p)
			return nil
		case <-ctx.Done():
			t.Stop()
			return errAbandoned
		case <-t.C:
		}
	}
}

// forgetEnded takes a process that has ended off the record, and kills nothing.
func (ps *Manager) forgetEnded(id string) error {
	p, err := ps.find(id)
	if err != nil {
		return err
	}
	if !p.isDone() {
		return api.Errorf(api.CodeState, "process %q has not ended", id)
	}
	ps.drop(p)
	return nil
}

// drop takes an ended process off the record.
func (ps *Manager) drop(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.dropLocked(p)
}

// dropLocked is drop for who holds ps.mu.
func (ps *Manager) dropLocked(p *process) {
	if ps.byID[p.id] != p {
		return
	}
	delete(ps.byID, p.id)
	ps.order = slices.DeleteFunc(ps.order, func(q *process) bool { return q == p })
	p.log.Discard()
}

// Terminate ends every process: TERM, then KILL for what is left after grace. It
// returns when no process is left and all are on record as ended.
func (ps *Manager) Terminate(grace time.Duration) {
	ps.mu.Lock()
	first := !ps.stopped
	ps.stopped = true
	procs := slices.Clone(ps.order)
	ps.mu.Unlock()
	for _, p := range procs {
		p.noMore()
	}
	ps.releaseStreams()
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
	// What held a pipe is dead. Only output that a streamed exec's caller does not
	// take can still hold up a record.
	filed := time.NewTimer(filedTime)
	defer filed.Stop()
	for i, late := 0, false; i < len(procs) && !late; i++ {
		select {
		case <-procs[i].done:
		case <-filed.C:
			late = true
		}
	}
	unix.Sync()
}

// signalEach signals every process but the agent.
func (ps *Manager) signalEach(sig unix.Signal) {
	if isInit() {
		_ = unix.Kill(-1, sig)
		return
	}
	signalAll(slices.DeleteFunc(tree(os.Getpid()), func(pid int) bool { return pid == os.Getpid() }), sig)
}

// Forget removes the record of a process, of an ended one only if the request says so.
func (ps *Manager) Forget(p *session.Call, req *wire.Request) error {
	var err error
	if req.Ended {
		err = ps.forgetEnded(req.ExecID)
	} else {
		err = ps.remove(p.Attend(nil), req.ExecID)
	}
	if err == nil {
		ps.repeats.forget(req.ExecID)
	}
	return err
}

// Hold stops the clocks of the processes, or lets them run on.
func (ps *Manager) Hold(on bool) { ps.clock.hold(on) }

// Socket makes a Unix socket that programs may connect to.
func (ps *Manager) Socket(kind int) (int, error) { return ps.table.confined.socket(kind) }

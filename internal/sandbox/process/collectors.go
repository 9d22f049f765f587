package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/spool"
)

const (
	// settleTime is how long, after the end of a sandbox, what its agent said last
	// may be on its way.
	settleTime = 2 * time.Second
	// drainTime bounds the wait for output: of a process before its end is
	// published, and of all processes before a sandbox is ended.
	drainTime = 5 * time.Second
	// endTime is how long after its output the end of a process may come.
	endTime = time.Second
	// maxSettling bounds the processes whose records are made final at once.
	maxSettling = 32
	// maxPerLink bounds the processes whose output comes over one connection: an
	// agent takes no more than so many calls on each.
	maxPerLink = 128
	// A lost connection is made again after minRetry, doubling to maxRetry.
	minRetry, maxRetry = 50 * time.Millisecond, 2 * time.Second
)

// collectors is what works for the managed processes of one sandbox: one goroutine
// that watches their states, and one for each that takes its output out of the
// sandbox. The Manager waits for who leads it, and who leads it for the others.
type collectors struct {
	// ctx ends with the Manager, or a moment after the sandbox.
	ctx    context.Context
	cancel context.CancelFunc
	links  links
	wg     sync.WaitGroup
	// closed is guarded by the table's lock. No more goroutines can join.
	closed bool
	// done is closed when every record of an ended sandbox is final.
	done chan struct{}
}

// join runs f as part of the collectors, unless that has gone home.
func (t *Table) join(c *collectors, f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.closed || c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// collectorsOf returns the collectors of a sandbox, and creates them if there are none.
func (m *Runner) collectorsOf(s *Table) *collectors {
	dial := s.sandbox.Dialer()
	t := s
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.collectors == nil {
		c := &collectors{links: links{dial: dial}, done: make(chan struct{})}
		c.ctx, c.cancel = context.WithCancel(m.o.Context)
		t.collectors = c
		m.o.Background(func() { m.leadCollectors(s, c) })
	}
	return t.collectors
}

// leadCollectors ends when the Manager closes, or when the sandbox has ended and all
// that its processes wrote and became is on record.
func (m *Runner) leadCollectors(s *Table, c *collectors) {
	defer close(c.done)
	defer c.cancel()
	defer c.links.close()
	s.join(c, func() { m.watchStates(c.ctx, s, c) })
	select {
	case <-c.ctx.Done(): // the Manager closes, or the sandbox is suspended
	case <-s.sandbox.Ended():
		if s.sandbox.Removing() {
			c.cancel() // what is still on its way would be removed with the rest
		}
		timer := time.AfterFunc(settleTime, c.cancel)
		defer timer.Stop()
	}
	s.mu.Lock()
	c.closed = true
	s.mu.Unlock()
	c.wg.Wait()
	if s.sandbox.Over() {
		m.settleAll(s)
	}
}

// settleAll makes the records of the processes of an ended sandbox final. Each
// waits for the disk, which takes many at once as fast as one.
func (m *Runner) settleAll(s *Table) {
	var wg sync.WaitGroup
	defer wg.Wait()
	limit := make(chan struct{}, maxSettling)
	for _, p := range s.every() {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			m.settleProcess(s, p)
		})
	}
}

// settleProcesses waits until the records of a sandbox that has ended are final.
func (m *Runner) settleProcesses(s *Table) {
	s.mu.Lock()
	c := s.collectors
	s.mu.Unlock()
	if c == nil { // it was suspended, or has no processes
		m.settleAll(s)
		return
	}
	select {
	case <-c.done:
	case <-m.o.Context.Done():
	}
}

// Suspend ends the goroutines that work for the processes of a sandbox that was suspended, and Resume starts them again. If
// they have not ended when ctx does, they go on to look for the agent.
func (t *Table) Suspend(ctx context.Context) {
	t.mu.Lock()
	c := t.collectors
	t.mu.Unlock()
	if c == nil {
		return
	}
	c.cancel()
	select {
	case <-c.done:
	case <-ctx.Done():
		return
	}
	for _, p := range t.every() {
		p.mu.Lock()
		p.stop, p.stopped = nil, nil
		p.mu.Unlock()
	}
	t.mu.Lock()
	t.collectors = nil
	t.mu.Unlock()
}

// Resume collects the output of the processes of a resumed sandbox.
func (t *Table) Resume() {
	kills := t.sandbox.OOMSeen()
	for _, p := range t.every() {
		p.mu.Lock()
		p.kills = kills
		collected := p.collected
		p.mu.Unlock()
		if !collected {
			t.all.collect(t, p)
		}
	}
}

// drainProcesses waits until the output of processes that have ended is here,
// for a bounded time.
func (m *Runner) drainProcesses(ctx context.Context, s *Table) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	for _, p := range s.every() {
		p.mu.Lock()
		stopped := p.stopped
		p.mu.Unlock()
		if stopped == nil {
			continue
		}
		select {
		case <-stopped:
		case <-ctx.Done():
			m.o.Logger.Warn("output is left in the sandbox", "sandbox", s.names.ID, "process", p.id)
			return
		}
	}
}

// adoptProcesses finds the processes of a sandbox again: it goes on with the
// output of those that live, and ends the records of those that cannot.
func (m *Runner) adoptProcesses(s *Table) {
	if err := m.loadProcesses(s); err != nil {
		m.o.Logger.Error("load processes", "sandbox", s.names.ID, "error", err)
	}
	kills, reached := s.sandbox.OOMSeen(), s.sandbox.Reached()
	for _, p := range s.every() {
		p.mu.Lock()
		p.kills = kills
		collected := p.collected
		p.mu.Unlock()
		switch {
		case collected:
		case s.sandbox.Over():
			m.settleProcess(s, p)
		case reached:
			m.collect(s, p)
		}
	}
}

// settleProcess makes the record of a process of an ended sandbox final. If its end was not
// observed, its state is unknown.
func (m *Runner) settleProcess(s *Table, p *process) {
	p.mu.Lock()
	confirmed, collected, said := p.confirmed, p.collected, p.said
	p.mu.Unlock()
	if collected {
		return
	}
	if !confirmed {
		m.discard(s, p)
		return
	}
	reason := s.sandbox.Ending().Reason
	m.update(s, p, func(rec *api.Process) {
		if said != nil {
			takeOver(rec, *said)
		} else {
			unknown(reason)(rec)
		}
	})
	if s.sandbox.Removing() && p.condemn() {
		return // its log has no reader now or later
	}
	m.finishLog(s, p)
}

// finishLog says in the log of an ended process that there is no more.
func (m *Runner) finishLog(s *Table, p *process) {
	p.updating.Lock()
	defer p.updating.Unlock()
	p.mu.Lock()
	rec, removed := p.rec, p.removed
	p.mu.Unlock()
	if removed {
		return
	}
	log, release, err := p.openLog()
	if err != nil {
		m.o.Logger.Error("finish log", "sandbox", s.names.ID, "process", p.id, "error", err)
		return
	}
	defer release()
	if _, done := log.Finished(); !done {
		if err := log.Finish(finishReason(rec)); err != nil {
			m.o.Logger.Error("finish log", "sandbox", s.names.ID, "process", p.id, "error", err)
		}
	}
	rec.Position = log.End()
	ends := log.Ends()
	p.logMu.Lock()
	p.ends = ends
	p.logMu.Unlock()
	if err := p.save(processRecord{Process: rec, Confirmed: true, Collected: true, LogEnds: ends}); err != nil {
		m.o.Logger.Error("save process", "sandbox", s.names.ID, "process", p.id, "error", err)
	}
	p.mu.Lock()
	p.rec.Position, p.collected = rec.Position, true
	p.broadcast()
	p.mu.Unlock()
	if rec.EndedAt != nil {
		m.outdates(s, *rec.EndedAt)
	}
}

// watchStates hears what becomes of the processes of a sandbox.
func (m *Runner) watchStates(ctx context.Context, s *Table, c *collectors) {
	conn, free := c.links.take()
	defer free()
	var again retry
	for {
		client, err := conn.Get(ctx)
		if err == nil {
			err = client.WatchProcesses(ctx, func(said api.Process) error {
				again.reset()
				m.heard(s, said)
				return nil
			})
		}
		if errors.Is(err, api.ErrUnsupported) || !again.pause(ctx, s.sandbox.Ended()) {
			return
		}
		m.o.Logger.Debug("watch processes again", "sandbox", s.names.ID, "error", err)
	}
}

// heard takes what an agent says of a process.
func (m *Runner) heard(s *Table, said api.Process) {
	if said.State.Ended() {
		s.sandbox.MeetDeadline(said.ExecID)
	}
	s.mu.Lock()
	p, c := s.byID[said.ExecID], s.collectors
	s.mu.Unlock()
	if p == nil || c == nil {
		return
	}
	p.mu.Lock()
	confirmed, first := p.confirmed, p.said == nil
	if said.State.Ended() && first {
		p.said = &said
		p.broadcast()
	}
	stopped := p.stopped
	p.mu.Unlock()
	switch {
	case !said.State.Ended():
		// An exec that fails leaves nothing, so a start that has not yet succeeded
		// is not shown.
		if confirmed || said.State != api.ProcessStarting {
			m.update(s, p, func(rec *api.Process) { takeOver(rec, said) })
		}
	case first && stopped != nil:
		// The collecting goroutine publishes the end after the output. A child that the process
		// left behind may hold the output open indefinitely.
		s.join(c, func() {
			timer := time.NewTimer(drainTime)
			defer timer.Stop()
			select {
			case <-stopped:
			case <-timer.C:
			case <-c.ctx.Done():
				return
			}
			m.publishEnd(c.ctx, s, p, said)
		})
	}
}

// publishEnd makes what the agent said of the end of a process its record.
func (m *Runner) publishEnd(ctx context.Context, s *Table, p *process, said api.Process) {
	p.mu.Lock()
	judge := said.Signal == "KILL" && !said.TimedOut && !p.sentKill
	before := p.kills
	p.mu.Unlock()
	oom := judge && s.sandbox.OOMKills(ctx) > before
	m.syncAfter(ctx, s)
	m.update(s, p, func(rec *api.Process) {
		takeOver(rec, said)
		rec.OOM = oom
	})
	s.sandbox.Measure()
}

// collect starts to read the output of a process out of the sandbox, unless another goroutine does.
func (m *Runner) collect(s *Table, p *process) {
	c := m.collectorsOf(s)
	p.mu.Lock()
	if p.stopped != nil || p.collected || p.removed {
		p.mu.Unlock()
		return
	}
	ctx, stop := context.WithCancel(c.ctx)
	stopped := make(chan struct{})
	p.stop, p.stopped = stop, stopped
	p.mu.Unlock()
	joined := s.join(c, func() {
		defer close(stopped)
		defer stop()
		m.collectOutput(ctx, s, c, p)
	})
	if !joined {
		stop()
		close(stopped)
		if s.sandbox.Over() && m.o.Context.Err() == nil {
			m.settleProcess(s, p)
		}
	}
}

// collectOutput copies the output of a process into its log until the process
// has ended for good and all of it is there.
func (m *Runner) collectOutput(ctx context.Context, s *Table, c *collectors, p *process) {
	conn, free := c.links.take()
	defer free()
	in := collector{warn: func(err error) {
		m.o.Logger.Error("write log", "sandbox", s.names.ID, "process", p.id, "error", err)
	}}
	log, release, err := p.openLog()
	for err != nil {
		m.o.Logger.Error("collect output", "sandbox", s.names.ID, "process", p.id, "error", err)
		if !in.again.pause(ctx, s.sandbox.Ended()) {
			return
		}
		log, release, err = p.openLog()
	}
	defer release()
	in.log = log
	for {
		client, err := conn.Get(ctx)
		if err == nil {
			o := agent.FollowOptions{Since: log.End(), Follow: true, Primary: true}
			err = client.Follow(ctx, p.id, o, in.take)
		}
		p.mu.Lock()
		removing := p.removing
		p.mu.Unlock()
		switch {
		case removing: // the removal stops this, or has failed to
		case err == nil:
			if m.conclude(ctx, s, p, client) {
				return
			}
		case errors.Is(err, api.ErrNotFound):
			m.missing(ctx, s, p)
			return
		}
		if !in.again.pause(ctx, s.sandbox.Ended()) {
			return
		}
	}
}

// conclude publishes the end of a process whose output has all been collected.
// It is false where the agent says that the process goes on.
func (m *Runner) conclude(ctx context.Context, s *Table, p *process, client *agent.Client) bool {
	said := p.awaitEnd(ctx)
	if said == nil {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		all, err := client.Processes(ctx)
		if err != nil {
			return false
		}
		for _, r := range all {
			if r.ExecID == p.id && r.State.Ended() {
				said = &r
			}
		}
		if said == nil {
			return false
		}
	}
	m.publishEnd(ctx, s, p, *said)
	m.finishLog(s, p)
	return true
}

// awaitEnd returns the end that the agent has reported, which may come a moment
// after the output; nil when it does not.
func (p *process) awaitEnd(ctx context.Context) *api.Process {
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	for {
		p.mu.Lock()
		said, changed := p.said, p.changed
		p.mu.Unlock()
		if said != nil {
			return said
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// missing ends the record of a process that the agent knows nothing of: one that
// was never started, or one that another has removed.
func (m *Runner) missing(ctx context.Context, s *Table, p *process) {
	_, free, err := s.claim(ctx, p.id)
	if err != nil {
		return
	}
	defer free()
	p.mu.Lock()
	confirmed, removed := p.confirmed, p.removed
	p.mu.Unlock()
	switch {
	case removed:
	case !confirmed:
		m.discard(s, p)
	default:
		m.update(s, p, unknown("its agent does not know it any more"))
		m.finishLog(s, p)
	}
}

// collector puts what an agent sends into a log.
type collector struct {
	log    *spool.Log
	warn   func(error)
	warned bool
	again  retry
}

// take appends one chunk. What the log has already is left out, and what
// contradicts it ends the call: an agent is not trusted to count.
func (in *collector) take(c agent.Chunk) error {
	r := spool.Record{Stream: c.Stream, Position: c.Position, Offset: c.Offset, Time: c.Time, Data: c.Data}
	if c.Gap > 0 || len(c.Data) == 0 {
		r.Stream, r.Offset, r.Data = "", 0, nil
	}
	if over := in.log.End() - r.Position; over > 0 {
		if over >= int64(len(r.Data)) {
			return nil
		}
		r.Position, r.Offset, r.Data = r.Position+over, r.Offset+over, r.Data[over:]
	}
	err := in.log.Append(r)
	switch {
	case err == nil:
		in.again.reset()
	case errors.Is(err, spool.ErrOrder), errors.Is(err, spool.ErrFinished):
		return fmt.Errorf("output of the agent: %w", err)
	case !in.warned:
		// The log goes on without the disk, and knows what is missing there.
		in.warned = true
		in.warn(err)
	}
	return nil
}

// links are the connections to one agent over which output is collected. They
// are not the one of the calls, which a flood of output would hold up.
type links struct {
	dial func() Conn

	mu    sync.Mutex
	conns []Conn
	users []int
}

// take returns a connection with a free slot.
func (l *links) take() (conn Conn, free func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := 0
	for i < len(l.users) && l.users[i] >= maxPerLink {
		i++
	}
	if i == len(l.users) {
		l.conns, l.users = append(l.conns, l.dial()), append(l.users, 0)
	}
	l.users[i]++
	return l.conns[i], sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.users[i]--
	})
}

func (l *links) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

// retry spaces out attempts. The zero value is one that has just succeeded.
type retry struct{ wait time.Duration }

func (r *retry) reset() { r.wait = 0 }

// pause waits before the next attempt; false says that there shall be none.
func (r *retry) pause(ctx context.Context, ended <-chan struct{}) bool {
	r.wait = min(max(2*r.wait, minRetry), maxRetry)
	timer := time.NewTimer(r.wait + rand.N(r.wait/4))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ended:
	case <-ctx.Done():
	}
	return false
}

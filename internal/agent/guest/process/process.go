//go:build linux

package process

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
)

const (
	// drainIdle is how long after the exit of a program its output may stay
	// silent, held open by something in the background, before it counts as ended.
	drainIdle = 250 * time.Millisecond
	// firstBytes is read at once before output comes in bulk.
	firstBytes = 4 << 10
)

// process is what is on record under one id: an exec, which is one run of a
// program, or a managed process, which may be many.
type process struct {
	id      string
	key     string // of the request; empty is never the same as another
	argv    []string
	hasTTY  bool
	managed *managed // nil for an exec
	log     *output.Log
	collect *output.Collector // nil except for a collected exec
	sink    sink
	input   *input
	ends    atomic.Int32 // how often the caller of a streamed exec has ended its input
	lines   output.LastLine
	feed    *feed
	reclaim func() // shrinks the logs
	// quiet: something has changed that watchers are told of in a while.
	quiet atomic.Bool
	rev   uint64 // guarded by feed.mu
	// launched is closed when the first run has begun, or the record is dropped.
	launched chan struct{}
	// quit is closed when the process is not to be started again.
	quit     chan struct{}
	quitOnce sync.Once
	// done is closed when the process has ended for good and its output is complete.
	done chan struct{}

	mu         sync.Mutex
	state      api.ProcessState
	run        *run // the present or last one
	started    time.Time
	readyAt    *time.Time
	ended      time.Time
	known      bool // how the last run ended is in status
	status     unix.WaitStatus
	timedOut   bool
	reason     string
	restarts   int
	rows, cols uint16
}

// run is one execution of a program.
type run struct {
	child   *child
	group   *group   // nil without cgroups
	tty     *os.File // the agent's side of the terminal, nil for none
	started time.Time
	expired atomic.Bool
	outputs []*output.Reader // what the pumps read; set before they start
	// settled counts the streams whose output counts as complete.
	settled sync.WaitGroup
	// over is closed when the exit is known and the output complete.
	over chan struct{}
}

// pump reads one stream of a run until its end, into the log always, to the
// collector and the sink until the output counts as complete.
func (p *process) pump(r *run, f *output.Reader, stream int) {
	defer f.Close()
	settled := false
	settle := func() {
		if !settled {
			settled = true
			r.settled.Done()
		}
	}
	defer settle()
	buf := make([]byte, firstBytes)
	late := 0
	for {
		left := p.log.Space(nil)
		n, err := f.Read(buf[:min(int64(len(buf)), left)])
		if n > 0 {
			buf = p.took(buf, n, stream, !settled)
		}
		exited := r.exited()
		switch {
		case err == nil && exited && !settled:
			if late += n; late > output.DrainBytes {
				settle()
				_ = f.SetReadDeadline(time.Time{})
			} else {
				_ = f.SetReadDeadline(time.Now().Add(drainIdle))
			}
		case err == nil:
		case os.IsTimeout(err):
			settle()
			_ = f.SetReadDeadline(time.Time{})
		default:
			return // the end; EIO on a terminal
		}
	}
}

// took files n bytes of buf, and returns what to read into next.
func (p *process) took(buf []byte, n, stream int, attached bool) []byte {
	now := time.Now()
	data := buf[:n]
	if stream == output.Stderr || p.hasTTY {
		p.lines.Add(data)
	}
	if attached && p.managed != nil {
		p.managed.look(stream, data)
	}
	if attached && p.collect != nil {
		p.collect.Add(stream, data)
	}
	if attached {
		p.sink.send(stream, data)
	}
	if n > output.BlockBytes/2 && len(buf) == output.BlockBytes {
		buf = p.log.Give(stream, buf, n, now)
	} else {
		p.log.Add(stream, data, now)
		if n == firstBytes && len(buf) == firstBytes {
			buf = make([]byte, output.BlockBytes)
		}
	}
	if p.managed != nil {
		p.feed.soon(p)
	}
	if p.log.Budget.Over() {
		p.reclaim()
	}
	return buf
}

func (r *run) exited() bool {
	select {
	case <-r.child.exited:
		return true
	default:
		return false
	}
}

// present returns the present or last run.
func (p *process) present() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// isDone says that the process has ended for good.
func (p *process) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// noMore ends the restart policy.
func (p *process) noMore() { p.quitOnce.Do(func() { close(p.quit) }) }

// set changes the record under mu and tells the watchers.
func (p *process) set(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	if p.managed != nil {
		p.feed.changed(p)
	}
}

// result is what became of the process. It is for after done.
func (p *process) result() api.Result {
	p.mu.Lock()
	r := api.Result{ExecID: p.id, TimedOut: p.timedOut, DurationMS: p.ended.Sub(p.started).Milliseconds()}
	r.ExitCode, r.Signal = exitOf(p.status)
	p.mu.Unlock()
	if p.collect != nil {
		p.collect.Finish(&r)
		return r
	}
	_, n := p.log.Written()
	r.StdoutInfo.Kept, r.StderrInfo.Kept = n[output.Stdout], n[output.Stderr]
	return r
}

// exitOf is the exit record of a wait status.
func exitOf(ws unix.WaitStatus) (code *int, signal string) {
	switch {
	case ws.Exited():
		return new(ws.ExitStatus()), ""
	case ws.Signaled():
		return nil, signalName(ws.Signal())
	}
	return nil, ""
}

// record is what Processes lists.
func (p *process) record() api.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := api.Process{
		ExecID: p.id, Argv: p.argv, TTY: p.hasTTY, State: p.state, StartedAt: p.started, ReadyAt: p.readyAt,
		Running: !p.known, TimedOut: p.timedOut, Reason: p.reason, Restarts: p.restarts, LastStderr: p.lines.Text(),
	}
	if p.managed != nil {
		r.Managed, r.Name = true, p.managed.name
	}
	if p.known {
		ended := p.ended
		r.EndedAt = &ended
		r.ExitCode, r.Signal = exitOf(p.status)
	} else if p.run != nil {
		r.PID = p.run.child.pid
	}
	r.Position, _ = p.log.Written()
	r.StdinOffset, r.StdinOpen = p.input.state()
	return r
}

// forgetCollected frees what was kept for a result that has been taken.
func (p *process) forgetCollected() { p.collect.Discard() }

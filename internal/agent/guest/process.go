//go:build linux

package guest

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// drainIdle is how long after the exit of a program its output may stay
	// silent, held open by something in the background, before it counts as ended.
	drainIdle = 250 * time.Millisecond
	// drainBytes is how much output after the exit still counts: more than a pipe
	// can hold.
	drainBytes = 2 << 20
	// readBytes is read at once of what comes in bulk, firstBytes of the rest.
	readBytes  = 128 << 10
	firstBytes = 4 << 10
)

// process is one program that was started, running or ended.
type process struct {
	id      string
	argv    []string
	started time.Time
	child   *child
	group   *group // nil without cgroups
	rings   [2]*ring
	collect *collector // nil for a streamed one
	tty     *os.File   // the agent's side of the terminal, nil for none

	inMu  sync.Mutex
	stdin *os.File // nil once closed

	sink     sink
	timedOut atomic.Bool
	outputs  []*os.File // what the pumps read; set before watch
	// settled counts the streams whose output counts as complete.
	settled sync.WaitGroup
	// done is closed when the exit is known and the output complete.
	done  chan struct{}
	ended time.Time
}

// sink sends output to whoever is attached.
type sink struct {
	mu  sync.Mutex
	w   *wire.Writer
	seq uint64
}

var outputKinds = [2]wire.Kind{wire.KindStdout, wire.KindStderr}

// send blocks while the reader is slow. One that is gone is detached.
func (s *sink) send(stream int, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	if err := s.w.Output(outputKinds[stream], s.seq, p); err != nil {
		s.w = nil
		return
	}
	s.seq++
}

func (s *sink) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w = nil
}

// pump reads one stream until its end, into the ring always, to the collector and
// the sink until the output counts as complete.
func (p *process) pump(f *os.File, stream int) {
	defer f.Close()
	settled := false
	settle := func() {
		if !settled {
			settled = true
			p.settled.Done()
		}
	}
	defer settle()
	buf := make([]byte, firstBytes)
	late := 0
	for {
		n, err := f.Read(buf)
		if n > 0 {
			p.rings[stream].add(buf[:n], time.Now())
			if !settled {
				if p.collect != nil {
					p.collect.add(stream, buf[:n])
				}
				p.sink.send(stream, buf[:n])
			}
		}
		if n == firstBytes && n == len(buf) {
			buf = make([]byte, readBytes)
		}
		exited := p.exited()
		switch {
		case err == nil && exited && !settled:
			if late += n; late > drainBytes {
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

func (p *process) exited() bool {
	select {
	case <-p.child.exited:
		return true
	default:
		return false
	}
}

// write gives the program input; it blocks while the program does not read.
func (p *process) write(data []byte) error {
	p.inMu.Lock()
	f := p.stdin
	p.inMu.Unlock()
	if f == nil {
		return os.ErrClosed
	}
	_, err := f.Write(data)
	return err
}

// closeInput ends the program's input.
func (p *process) closeInput() {
	if p.tty != nil {
		_, _ = p.tty.Write([]byte{4}) // ^D: the terminal turns it into an end of file
		return
	}
	p.inMu.Lock()
	f := p.stdin
	p.stdin = nil
	p.inMu.Unlock()
	if f != nil {
		f.Close()
	}
}

// result is what became of the process. It is for after done.
func (p *process) result() cloche.Result {
	r := cloche.Result{ExecID: p.id, TimedOut: p.timedOut.Load(), DurationMS: p.ended.Sub(p.started).Milliseconds()}
	r.ExitCode, r.Signal = exitOf(p.child.status)
	if p.collect != nil {
		p.collect.finish(&r)
		return r
	}
	for i, c := range []*cloche.StreamCounts{&r.StdoutInfo, &r.StderrInfo} {
		p.rings[i].mu.Lock()
		c.Kept = p.rings[i].offset
		p.rings[i].mu.Unlock()
	}
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
func (p *process) record() cloche.Process {
	r := cloche.Process{ExecID: p.id, Argv: p.argv, StartedAt: p.started, Running: true}
	select {
	case <-p.done:
		r.Running = false
		r.EndedAt = &p.ended
		r.ExitCode, r.Signal = exitOf(p.child.status)
		r.TimedOut = p.timedOut.Load()
	default:
	}
	return r
}

// forgetCollected frees what was kept for a result that has been taken.
func (p *process) forgetCollected() {
	p.collect.mu.Lock()
	defer p.collect.mu.Unlock()
	p.collect.streams = [2]kept{}
}

//go:build linux

package gvisor

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

// What a guard says goes through a FIFO of the instance's directory, which keeps
// it while the daemon is away for as long as the sentry lives; and what it has seen
// is counted in a file, which outlives both.
const (
	notesPipe = "refused"
	countFile = "refused.count"
)

const (
	// noteBurst notes are taken at once, and then one each notePace: more than a
	// guard tells, so that only a guard that was taken over has to wait.
	noteBurst = 128
	notePace  = 100 * time.Millisecond
	// countPause is how long after a note the count is looked at, for what was not
	// told.
	countPause = 5 * time.Second
)

// reports are the engine's ends of what a guard says.
type reports struct {
	pipe, count *os.File

	mu     sync.Mutex // held while a listener reads
	closed chan struct{}
	once   sync.Once
}

// openGuard gives the sentry of a plan with rules a refusal.
func (c *creation) openGuard() (*reports, error) {
	if len(c.plan.Rules) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(guardRules(c.plan))
	if err != nil {
		return nil, fmt.Errorf("encode rules: %w", err)
	}
	rules, err := memoryFile("rules", b)
	if err != nil {
		return nil, err
	}
	rulesFD := c.sentry.add(rules)
	pipe, count, err := makeReports(c.plan.Dir)
	if err != nil {
		return nil, err
	}
	pipeFD, countFD := c.sentry.add(pipe), c.sentry.add(count)
	c.sentry.args = append(c.sentry.args, refusal.Argument(rulesFD, pipeFD, countFD))
	return openReports(c.plan.Dir)
}

// guardRules are what a guard is told of a plan.
func guardRules(p engine.Plan) *refusal.Rules {
	told := &refusal.Rules{}
	for _, r := range p.Rules {
		told.Rules = append(told.Rules, refusal.Rule{Target: r.Target, Path: r.Path, Access: r.Access})
	}
	for _, m := range spec(p).Mounts {
		told.Targets = append(told.Targets, m.Destination)
	}
	return told
}

// makeReports makes the guard's ends.
func makeReports(dir string) (pipe, count *os.File, err error) {
	name := filepath.Join(dir, notesPipe)
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, nil, fmt.Errorf("make pipe of a guard: %w", err)
	}
	// Open for both: it keeps what is in it when no daemon listens.
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open pipe of a guard: %w", err)
	}
	pipe = os.NewFile(uintptr(fd), notesPipe)
	count, err = os.OpenFile(filepath.Join(dir, countFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		pipe.Close()
		return nil, nil, fmt.Errorf("make count of a guard: %w", err)
	}
	if _, err := count.Write(make([]byte, refusal.CountBytes)); err != nil {
		pipe.Close()
		count.Close()
		return nil, nil, fmt.Errorf("write count of a guard: %w", err)
	}
	return pipe, count, nil
}

// openReports opens what there is in an instance's directory; nil is nothing.
func openReports(dir string) (*reports, error) {
	count, err := os.OpenFile(filepath.Join(dir, countFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open count of a guard: %w", err)
	}
	fd, err := unix.Open(filepath.Join(dir, notesPipe), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		count.Close()
		return nil, fmt.Errorf("open pipe of a guard: %w", err)
	}
	return &reports{pipe: os.NewFile(uintptr(fd), notesPipe), count: count, closed: make(chan struct{})}, nil
}

// untoldIn counts the refusals that a dead instance did not report.
func untoldIn(dir string) engine.Untold {
	if dir == "" {
		return 0
	}
	f, err := os.Open(filepath.Join(dir, countFile))
	if err != nil {
		return 0
	}
	defer f.Close()
	r := reports{count: f}
	return engine.Untold(r.gap(r.number(0), r.number(8)))
}

// number reads one of the two numbers; what cannot be read is 0.
func (r *reports) number(at int64) uint64 {
	var b [8]byte
	if _, err := r.count.ReadAt(b[:], at); err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (r *reports) gap(seen, told uint64) int64 {
	if seen <= told {
		return 0
	}
	return int64(min(seen-told, math.MaxInt64))
}

// drainTime is how long an end waits for who listens to take the last notes.
const drainTime = 2 * time.Second

// close gives up the descriptors, when who listens has taken what there was. The
// sentry is dead, or never lived.
func (r *reports) close() {
	cut := time.AfterFunc(drainTime, func() {
		r.once.Do(func() { close(r.closed) })
		_ = r.pipe.SetReadDeadline(time.Unix(1, 0))
	})
	defer cut.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipe.Close()
	r.count.Close()
}

// Refusals implements engine.Refuser.
func (i *instance) Refusals(ctx context.Context, fn func(engine.PathDenial)) error {
	if i.reports == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.Done():
			return nil
		}
	}
	return i.reports.listen(ctx, i.Done(), fn)
}

func (r *reports) listen(ctx context.Context, dead <-chan struct{}, fn func(engine.PathDenial)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = r.pipe.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	l := listener{r: r, dead: dead, in: bufio.NewReaderSize(r.pipe, refusal.MaxLine), fn: fn, told: r.number(8)}
	return l.listen(ctx)
}

// listener takes the notes of a guard, which may no longer be one: code that took
// over the sentry can write anything.
type listener struct {
	r    *reports
	dead <-chan struct{}
	in   *bufio.Reader
	fn   func(engine.PathDenial)
	told uint64
	full time.Time // when the next burst is whole again
	last int       // notes that were taken from a sentry that is dead
}

func (l *listener) listen(ctx context.Context) error {
	look := true // first at what was counted without a listener
	for {
		deadline := time.Time{}
		if look {
			deadline = time.Now().Add(countPause)
		}
		_ = l.r.pipe.SetReadDeadline(deadline)
		if err := l.over(ctx); err != nil {
			return err
		}
		line, err := l.in.ReadSlice('\n')
		switch {
		case err == nil:
			if err := l.wait(ctx); err != nil {
				return err
			}
			if l.last > noteBurst {
				l.missed()
				return nil
			}
			look = true
			l.take(line)
		case errors.Is(err, bufio.ErrBufferFull): // it is no note
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.missed()
			look = false
		case errors.Is(err, io.EOF):
			return l.end(ctx)
		default:
			return fmt.Errorf("read notes of a guard: %w", err)
		}
	}
}

// over is the error of a listener that is not to go on.
func (l *listener) over(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.r.closed:
		return os.ErrClosed
	default:
		return nil
	}
}

// wait holds back from a sentry that tells more than a guard would.
func (l *listener) wait(ctx context.Context) error {
	select {
	case <-l.dead:
		l.last++
		return nil
	default:
	}
	now := time.Now()
	if l.full.Before(now) {
		l.full = now
	}
	over := l.full.Sub(now) - noteBurst*notePace
	l.full = l.full.Add(notePace)
	if over <= 0 {
		return nil
	}
	t := time.NewTimer(over)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.dead:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take tells one note.
func (l *listener) take(line []byte) {
	n, err := refusal.ParseNote(line)
	if err != nil || n.Seq <= l.told || n.Rule < 0 {
		return // counted, if it was one
	}
	l.fn(engine.PathDenial{
		Rule: n.Rule, Op: n.Op, Path: string(n.Path), Program: string(n.Program), UID: n.UID,
		Missed: l.r.gap(n.Seq-1, l.told),
	})
	l.tell(n.Seq)
}

// missed tells how many refusals there were that are not in any note.
func (l *listener) missed() {
	seen := l.r.number(0)
	if n := l.r.gap(seen, l.told); n > 0 {
		l.fn(engine.PathDenial{Rule: -1, Missed: n})
		l.tell(seen)
	}
}

// tell writes down how far has been told, for the next daemon.
func (l *listener) tell(seq uint64) {
	l.told = seq
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seq)
	_, _ = l.r.count.WriteAt(b[:], 8) // without it, the next daemon tells some again
}

// end tells what is left when the sentry has given up its end.
func (l *listener) end(ctx context.Context) error {
	select {
	case <-l.dead:
	case <-l.r.closed:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.missed()
	return nil
}

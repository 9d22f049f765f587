package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// lockWait is how long Record waits for another process to finish its line. A
// line takes microseconds; who holds the lock longer is stuck.
const lockWait = 5 * time.Second

// syncEvery is how old a record may be that is not on the disk itself.
const syncEvery = time.Second

// Options are what a Log works with. Home and Logger are required.
type Options struct {
	// Home is the directory of the log.
	Home   string
	Logger *slog.Logger
	// SegmentBytes and SegmentAge are when a file is closed and another begun; 0 is
	// 64 MiB and 24 hours.
	SegmentBytes int64
	SegmentAge   time.Duration
	// KeepBytes and KeepFor bound the closed files, the oldest of which are removed;
	// 0 keeps all.
	KeepBytes int64
	KeepFor   time.Duration
	// Degrade lets Record succeed when the disk has no space for a record.
	Degrade bool
	// Redactor takes secret values out of every record; nil knows none.
	Redactor Redactor
	// Alarm is told when records cannot be written, and when they can again. It must
	// not call the Log. It may be nil.
	Alarm func(api.Event)
}

const (
	defaultSegmentBytes = 64 << 20
	defaultSegmentAge   = 24 * time.Hour
)

// Log appends events to the chain of one home. Several processes may have the
// same home open: each line is one write under a lock, so lines never mix. A Log
// is safe for concurrent use.
//
// A line that Record returned from survives the death of every process. It is
// synced to the disk within a second: when the whole machine stops, that second
// can be lost, and is then on record as lost.
type Log struct {
	opts Options
	dir  string // of older segments, the head and the lock
	boot string

	mu     sync.Mutex
	closed bool
	lock   *os.File
	head   *os.File
	file   *os.File // the segment that grows; nil if it is not known
	at     position
	anchor chain.Anchor
	known  []byte // the head's file as it is, if that is known
	buf    []byte
	failed failing

	dirty   chan struct{}
	done    chan struct{} // closed by Close
	ending  sync.Once
	syncing sync.WaitGroup
	// wake is closed and replaced when a record was written.
	wake chan struct{}

	// step is called before each step of a write; tests make it kill the process.
	step func(name string)
}

// position is what this process knows of the segment that grows. It holds as
// long as the file has this inode and size.
type position struct {
	inode uint64
	size  int64
	open  bool // the last line has no end
	// head is what the next record follows.
	head chain.Head
	// segment is its number, and begun when its first record was made.
	segment int64
	begun   time.Time
}

// Open opens the log, and makes what is missing of it with modes 0700 and 0600.
// A log of an earlier form is taken in: its lines stay as they are, and the first
// record of the chain holds their hash.
func Open(o Options) (*Log, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.SegmentAge == 0 {
		o.SegmentAge = defaultSegmentAge
	}
	l := &Log{opts: o, dir: filepath.Join(o.Home, chain.Dir), boot: bootID(), dirty: make(chan struct{}, 1), done: make(chan struct{}), wake: make(chan struct{}), step: func(string) {}}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	l.syncing.Go(l.keepSynced)
	return l, nil
}

func (l *Log) open() (err error) {
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make audit directory: %w", err)
	}
	if l.lock, err = openFile(filepath.Join(l.dir, chain.LockName), os.O_RDWR|os.O_CREATE); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	unlock, err := l.locked()
	if err != nil {
		return err
	}
	defer unlock()
	// A disk that is full must not keep a daemon from starting to clean up: what
	// cannot be written now is tried again with the first record.
	facts, err := l.find()
	if err == nil && len(facts) > 0 {
		err = l.write(facts, nil)
	}
	if err == nil {
		l.retain()
		l.say("audit log opened")
	}
	if isFull(err) {
		l.at = position{}
		l.opts.Logger.Error("the audit log has no space", "error", err)
		return nil
	}
	return err
}

// say leaves the head in the daemon's log, which is kept elsewhere.
func (l *Log) say(what string) {
	if l.at.head.Seq > 0 {
		l.opts.Logger.Info(what, "seq", l.at.head.Seq, "hash", l.at.head.Hash, "segment", l.at.segment)
	}
}

func openFile(path string, flags int) (*os.File, error) {
	f, err := hostfile.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is %s, not a regular file", info.Mode().Type())
	}
	if err == nil {
		err = onlyOwn(f, info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open audit log: %w", err), f.Close())
	}
	return f, nil
}

// Record appends one event. What happened is recorded even when ctx is
// cancelled, because the caller that left was served; only waiting for
// another process's lock is bounded, by a time of its own.
//
// The error is a *api.Error of code unavailable and names no path. A caller
// that gets one for a Granted event must not do what it was about to do. With
// Options.Degrade a full disk is no error: the records that it cost are counted,
// and the count is the next record that fits.
func (l *Log) Record(_ context.Context, e Event) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	body, err := encode(e, nil, l.opts.Redactor)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		err = l.append(body)
	}
	if err == nil || l.opts.Degrade && isFull(err) {
		return nil
	}
	out := api.Errorf(api.CodeUnavailable, "the audit log cannot be written, and nothing is done without a record")
	out.Retryable = true
	return out.WithCause(err).WithHint("the operator finds the reason in the daemon's log")
}

// append needs l.mu.
func (l *Log) append(body []byte) error {
	if l.closed {
		return fmt.Errorf("append to audit log: %w", fs.ErrClosed)
	}
	unlock, err := l.locked()
	if err != nil {
		l.missed(err, false)
		return err
	}
	defer unlock()
	facts, err := l.find()
	rotated := false
	if err == nil && len(facts) == 0 && l.due(len(body)) {
		facts, err = l.rotate()
		rotated = true
	}
	if err == nil {
		err = l.write(facts, body)
	}
	if err != nil {
		l.missed(err, true)
		return err
	}
	l.recovered()
	if rotated {
		l.say("audit log rotated")
		l.retain()
	}
	return nil
}

// write appends facts and a record, whose body may be nil, in one piece.
func (l *Log) write(facts []api.AuditFact, body []byte) error {
	head := l.at.head
	l.buf = l.buf[:0]
	if l.at.open {
		l.buf = append(l.buf, '\n')
	}
	now := time.Now()
	gap := l.gap(now)
	if gap != nil {
		facts = append(facts, *gap)
	}
	for i := range facts {
		text, err := encode(Event{Time: now, Verb: api.AuditChainVerb}, &facts[i], nil)
		if err != nil {
			return err
		}
		l.buf, head = head.Seal(l.buf, text)
	}
	if body != nil {
		l.buf, head = head.Seal(l.buf, body)
	}
	l.step("write")
	if _, err := l.file.Write(l.buf); err != nil {
		// No other process writes while the lock is held, so half a line can be taken
		// back. Where that fails too, it is found as a torn line.
		err = errors.Join(fmt.Errorf("append to audit log: %w", err), l.file.Truncate(l.at.size))
		l.at.inode = 0
		return err
	}
	l.at.size += int64(len(l.buf))
	l.at.head, l.at.open = head, false
	for _, f := range facts {
		switch f.Kind {
		case api.AuditGap:
			l.anchor.Missed, l.anchor.Since, l.failed.missed = 0, time.Time{}, 0
		case api.AuditRemoved:
			l.anchor.Removed = chain.Removed{Segment: f.Segment, Seq: f.Last, Hash: f.Hash}
		}
	}
	l.step("head")
	l.putAnchor()
	l.wakeReaders()
	return nil
}

func (l *Log) wakeReaders() {
	close(l.wake)
	l.wake = make(chan struct{})
	select {
	case l.dirty <- struct{}{}:
	default:
	}
}

// locked takes the lock of the home. It asks again and again instead of blocking
// in the kernel, where nothing could bound the wait.
func (l *Log) locked() (unlock func(), err error) {
	lock := l.lock
	unlock = func() { hostfile.Unlock(lock) }
	var late <-chan time.Time
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := hostfile.TryLock(lock)
		switch {
		case err == nil:
			return unlock, nil
		case !errors.Is(err, hostfile.ErrLocked):
			return nil, fmt.Errorf("lock audit log: %w", err)
		}
		if late == nil {
			late = time.After(lockWait)
		}
		select {
		case <-time.After(pause):
		case <-late:
			return nil, fmt.Errorf("lock audit log, held by another process for %s: %w", lockWait, os.ErrDeadlineExceeded)
		}
	}
}

// keepSynced syncs what was recorded, until the log is closed.
func (l *Log) keepSynced() {
	for {
		select {
		case <-l.dirty:
		case <-l.done:
			return
		}
		select {
		case <-time.After(syncEvery):
		case <-l.done:
			return
		}
		if err := l.Sync(); err != nil {
			l.opts.Logger.Error("sync audit log", "error", err)
		}
	}
}

// Sync writes what was recorded through to the disk.
func (l *Log) Sync() error {
	l.mu.Lock()
	f, seq := l.file, l.at.head.Seq
	if l.closed || f == nil || l.anchor.Synced >= seq {
		l.mu.Unlock()
		return nil
	}
	// A descriptor of its own: a rotation may close the other.
	own, err := duplicate(f)
	l.mu.Unlock()
	if err == nil {
		err = errors.Join(syncData(own), own.Close())
	}
	if err != nil {
		return fmt.Errorf("sync audit log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.anchor.Synced = max(l.anchor.Synced, seq) // written with the next record, or by Close
	return nil
}

// Close syncs and closes the log; Record fails from then on. It is idempotent.
func (l *Log) Close() error {
	l.ending.Do(func() { close(l.done) })
	l.syncing.Wait()
	err := l.Sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.say("audit log closed")
	close(l.wake)
	if l.file != nil && l.anchor.Synced == l.at.head.Seq {
		err = errors.Join(err, l.settle())
	}
	return errors.Join(err, l.closeFiles())
}

// settle writes the head after a sync, unless another process has gone on.
func (l *Log) settle() error {
	unlock, err := l.locked()
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := chain.ReadAnchor(filepath.Join(l.dir, chain.HeadName)); err == nil && now.Seq == l.anchor.Seq {
		l.anchor.Missed, l.anchor.Since = now.Missed, now.Since // others may have counted
		l.putAnchor()
	}
	return nil
}

func (l *Log) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{l.file, l.head, l.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	l.file, l.head, l.lock = nil, nil, nil
	return errors.Join(errs...)
}

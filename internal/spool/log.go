package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Log is the output of one process. Append, Finish and Close are the writer's;
// everything else is safe for any number of goroutines.
//
// What Append returned from without error survives the death of the daemon. It
// is not synced to the disk: when the whole machine stops, what the kernel had
// not yet written, some thirty seconds, can be lost or damaged, and readers find
// a gap there. Finish syncs.
//
// A live log holds two descriptors, a finished one none.
type Log struct {
	dir          string
	maxBytes     int64
	segmentBytes int64
	recordBytes  int

	writing sync.Mutex // held by Append, Finish and Close for their whole time
	file    *os.File   // of the last segment; nil where the next record begins a new one
	scratch []byte
	nextSeq uint64
	// unsynced are the segments written by this Log.
	unsynced []uint64
	// doomed are files that should be gone and could not be removed.
	doomed []string
	failed time.Time // when writing last failed

	mu   sync.RWMutex // changed under writing and mu, so the writer reads without mu
	root *os.Root     // nil when finished or closed
	segs []*segment
	tail tail
	end  mark
	// memoryOnly is the end of the last record that is not on disk.
	memoryOnly int64
	err        error
	reason     string
	finished   bool
	closed     bool
	// wake is closed when something changes that a reader waits for.
	wake    chan struct{}
	waiting atomic.Bool // a reader may hold wake
}

// Append adds a record, or a hole where it has no data or begins after End. Data
// is copied. An error of the disk leaves the bytes in memory only, where readers
// near the end find them, and the log goes on: later ones get a gap. The disk is
// tried again after a while. ErrOrder and ErrFinished change nothing.
func (l *Log) Append(r Record) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	h := header{kind: kindGap, stream: none, pos: r.Position, time: nanos(r.Time)}
	switch s, ok := streamOf(r.Stream); {
	case l.closed:
		return fmt.Errorf("append to spool: %w", fs.ErrClosed)
	case l.finished:
		return ErrFinished
	case r.Position < l.end.pos:
		return fmt.Errorf("%w: position %d, end %d", ErrOrder, r.Position, l.end.pos)
	case !ok || s == none && len(r.Data) > 0:
		return fmt.Errorf("append to spool: stream %q is no output", r.Stream)
	case r.Position > maxPosition-int64(len(r.Data)):
		return fmt.Errorf("%w: position %d is too large", ErrOrder, r.Position)
	case s != none && (len(r.Data) > 0 || r.Offset > 0):
		// A gap without an offset may still name the stream that goes on after it.
		h.stream, h.off = s, r.Offset
		if h.off < 0 || h.off > h.pos || !l.end.fits(&h) {
			return fmt.Errorf("%w: offset %d of %s at position %d", ErrOrder, r.Offset, r.Stream, r.Position)
		}
	}
	if len(r.Data) == 0 {
		if r.Position == l.end.pos {
			return nil
		}
		return l.put(h, nil)
	}
	h.kind = kindData
	var failed error
	for data := r.Data; len(data) > 0; {
		piece := data[:min(len(data), l.recordBytes)]
		h.length, h.lines = len(piece), bytes.Count(piece, []byte{'\n'})
		h.ends = piece[len(piece)-1] == '\n'
		if err := l.put(h, piece); err != nil {
			failed = err
		}
		h.pos += int64(len(piece))
		h.off += int64(len(piece))
		data = data[len(piece):]
	}
	return failed
}

// put writes one record, then shows it to the readers whether or not the disk
// has it.
func (l *Log) put(h header, data []byte) error {
	h.sum = sumOf(data)
	err := l.store(&h, data)
	b := l.tail.stage(l.end, data)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.segs[len(l.segs)-1].note(&h)
	} else {
		l.memoryOnly = h.end()
	}
	l.err = err
	l.tail.push(b, &h)
	l.end = l.end.after(&h)
	l.broadcast()
	return err
}

// store writes one record at the end of the last segment. After an error that
// segment is left alone and the next record that is written begins another.
func (l *Log) store(h *header, data []byte) error {
	if l.err != nil && time.Since(l.failed) < retryAfter {
		return l.err
	}
	err := l.reserve(recordHeaderLen + int64(len(data)))
	if err == nil {
		err = l.write(h, data)
	}
	if err == nil {
		return nil
	}
	l.failed = time.Now()
	return errors.Join(fmt.Errorf("write spool: %w", err), l.leave())
}

func (l *Log) write(h *header, data []byte) error {
	// Small records go in one call, large ones are not copied for that.
	const small = 16 << 10
	s := l.segs[len(l.segs)-1]
	n := recordHeaderLen
	if len(data) <= small {
		n += len(data)
	}
	if cap(l.scratch) < n {
		l.scratch = make([]byte, max(n, 2*cap(l.scratch)))
	}
	b := l.scratch[:n]
	h.encode(b, s.salt)
	if copied := copy(b[recordHeaderLen:], data); copied < len(data) {
		if _, err := l.file.WriteAt(data, s.size+recordHeaderLen); err != nil {
			return err
		}
	}
	_, err := l.file.WriteAt(b, s.size)
	return err
}

// leave closes the file of the last segment, cutting off what may have been
// half written. Where that fails, the sums tell.
func (l *Log) leave() error {
	if l.file == nil {
		return nil
	}
	f, s := l.file, l.segs[len(l.segs)-1]
	l.file = nil
	_ = f.Truncate(s.size)
	if s.size == segmentHeaderLen {
		l.doomed = append(l.doomed, segmentName(s.seq))
		l.unsynced = slices.DeleteFunc(l.unsynced, func(seq uint64) bool { return seq == s.seq })
		l.mu.Lock()
		l.segs = l.segs[:len(l.segs)-1]
		l.mu.Unlock()
	}
	return f.Close()
}

// broadcast wakes every reader that waits. Log.mu is held.
func (l *Log) broadcast() {
	if l.waiting.Swap(false) {
		close(l.wake)
		l.wake = make(chan struct{})
	}
}

// End is the position after the last byte.
func (l *Log) End() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end.pos
}

// Offsets are the ends of the two streams. Missing bytes whose stream is not
// known yet are in neither.
func (l *Log) Offsets() (stdoutEnd, stderrEnd int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end.off[stdout], l.end.off[stderr]
}

// Ends are the offsets with the time, for Options.Ends of a later Open.
func (l *Log) Ends() Ends {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return Ends{Stdout: l.end.off[stdout], Stderr: l.end.off[stderr], Latest: timeOf(l.end.latest)}
}

// Err is why the log is not being written to disk now; nil while it is.
func (l *Log) Err() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.err
}

// Finished says why no more will come, and whether that is so.
func (l *Log) Finished() (reason string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.reason, l.finished
}

// Finish says that no more will come: readers at the end get io.EOF. The reason
// is kept on disk, cut to 1 KiB, and everything is synced. Readers do not wait
// for that. The log is finished whatever the error; to finish again does nothing.
func (l *Log) Finish(reason string) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed {
		return fmt.Errorf("finish spool: %w", fs.ErrClosed)
	}
	if l.finished {
		return nil
	}
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	h := header{kind: kindFinish, stream: none, pos: l.end.pos, length: len(reason), time: nanos(time.Now())}
	h.sum = sumOf([]byte(reason))
	l.failed = time.Time{} // the last chance to write
	err := l.store(&h, []byte(reason))

	l.mu.Lock()
	if err == nil {
		l.segs[len(l.segs)-1].note(&h)
	}
	l.reason, l.finished, l.err = reason, true, err
	if l.memoryOnly <= l.tail.start.pos {
		// All that the tail has is on disk, and few come for what has ended.
		l.tail = tail{start: l.end, max: l.tail.max}
	}
	l.broadcast()
	l.mu.Unlock()
	return errors.Join(err, l.sync(), l.release())
}

// release closes the descriptors that a log needs to go on.
func (l *Log) release() error {
	var err error
	if l.file != nil {
		err = l.file.Close()
		l.file = nil
	}
	l.mu.Lock()
	root := l.root
	l.root = nil
	l.mu.Unlock()
	if root != nil {
		err = errors.Join(err, root.Close())
	}
	return err
}

// sync writes through what this Log has written and still keeps.
func (l *Log) sync() error {
	var errs []error
	for _, seq := range l.unsynced {
		if seq < l.segs[0].seq {
			continue
		}
		errs = append(errs, syncFile(l.root, segmentName(seq)))
	}
	if len(l.unsynced) > 0 {
		if err := hostfile.SyncDir(l.root); err != nil {
			errs = append(errs, fmt.Errorf("sync spool: %w", err))
		}
	}
	l.unsynced = nil
	return errors.Join(errs...)
}

func syncFile(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("sync spool: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync spool: %w", err)
	}
	return nil
}

// Close releases the log without finishing it; readers get fs.ErrClosed. It is
// idempotent.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.tail = tail{start: l.end}
		l.broadcast()
	}
	l.mu.Unlock()
	return l.release()
}

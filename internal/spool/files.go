package spool

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// Open opens the log in o.Dir, or begins one. After a crash it finds everything
// that was whole: a torn last record is cut off, files of the log that are none
// are removed, and the index is built again from the records' headers. Files
// with other names are left alone.
func Open(o Options) (*Log, error) {
	if o.MaxBytes < 0 || o.TailBytes < 0 {
		return nil, fmt.Errorf("open spool: a negative bound (max %d, tail %d)", o.MaxBytes, o.TailBytes)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.TailBytes == 0 {
		o.TailBytes = defaultTailBytes
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	l := &Log{
		dir: o.Dir, root: root, maxBytes: max(o.MaxBytes, minMaxBytes), wake: make(chan struct{}), nextSeq: 1,
	}
	l.segmentBytes = min(l.maxBytes/segmentCount, maxSegment)
	l.recordBytes = int(min(l.segmentBytes/4, maxRecord))
	err = l.recover()
	if err == nil {
		err = l.extend(o.Ends)
	}
	if err == nil {
		l.tail = tail{start: l.end, max: o.TailBytes}
		err = l.trim(0)
	}
	if err == nil && l.finished {
		err = l.release()
	}
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", errors.Join(err, l.release()))
	}
	return l, nil
}

// recover takes up the files that are there. No other goroutine has the log yet.
func (l *Log) recover() error {
	seqs, err := l.list()
	if err != nil {
		return err
	}
	for i, seq := range seqs {
		l.nextSeq = max(l.nextSeq, seq+1)
		if err := l.adopt(seq, i == len(seqs)-1); err != nil {
			return err
		}
	}
	return nil
}

// extend sets the end to where the log is known to have ended. The next record
// begins a segment, whose mark keeps the offsets of both streams and the time.
func (l *Log) extend(to Ends) error {
	off := [2]int64{to.Stdout, to.Stderr}
	if off[stdout] < l.end.off[stdout] || off[stderr] < l.end.off[stderr] || off[stdout]+off[stderr] <= l.end.pos ||
		off[stdout] > maxPosition-off[stderr] {
		return nil
	}
	l.end.pos, l.end.off, l.end.latest = off[stdout]+off[stderr], off, max(l.end.latest, nanos(to.Latest))
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}

// list returns the numbers of the segments that are there, in order. A number
// without a next one is not from this package.
func (l *Log) list() ([]uint64, error) {
	dir, err := l.root.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, name := range names {
		if seq, ok := segmentSeq(name); ok && seq > 0 && seq < 1<<62 {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs, nil
}

// adopt takes up one file, after those with smaller numbers.
func (l *Log) adopt(seq uint64, last bool) error {
	name := segmentName(seq)
	info, err := l.root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return l.root.Remove(name)
	}
	f, err := l.root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s, finish, length, err := recoverSegment(seq, f, info.Size())
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if s == nil || s.start.pos < l.end.pos {
		return errors.Join(l.root.Remove(name), f.Close())
	}
	if last {
		err = l.repair(s, f, &finish)
	}
	l.finished = false
	if err == nil && finish.at > 0 && finish.at+int64(length) == s.size {
		reason := make([]byte, length)
		if _, err = f.ReadAt(reason, finish.at); err == nil {
			l.reason, l.finished = string(reason), true
		}
	}
	l.segs = append(l.segs, s)
	l.end = s.end
	if last && err == nil && !l.finished {
		l.file = f
		l.unsynced = append(l.unsynced, seq)
		return nil
	}
	return errors.Join(err, f.Close())
}

// repair cuts a torn record off the last segment.
func (l *Log) repair(s *segment, f *os.File, finish *place) error {
	last, ok, err := s.intact(f)
	if err != nil {
		return err
	}
	if !ok {
		s.cut(last)
		if finish.at > last.at {
			*finish = place{}
		}
	}
	return f.Truncate(s.size)
}

// reserve makes sure that n bytes fit into the last segment, or begins another.
func (l *Log) reserve(n int64) error {
	if l.file != nil && l.segs[len(l.segs)-1].size+n <= l.segmentBytes {
		return nil
	}
	if l.file != nil {
		f := l.file
		l.file = nil
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := l.trim(l.segmentBytes); err != nil {
		return err
	}
	var salt [8]byte
	rand.Read(salt[:]) // never fails since Go 1.24
	s := newSegment(l.nextSeq, binary.LittleEndian.Uint64(salt[:]), l.end)
	l.nextSeq++
	name := segmentName(s.seq)
	f, err := l.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(encodeSegment(s.salt, s.start), 0); err != nil {
		l.doomed = append(l.doomed, name)
		return errors.Join(err, f.Close())
	}
	l.file = f
	l.unsynced = append(l.unsynced, s.seq)
	l.mu.Lock()
	l.segs = append(l.segs, s)
	l.mu.Unlock()
	return nil
}

// trim drops the oldest segments until n more bytes fit. The last one stays. A
// disk that fails again and again leaves many small segments: they are bounded
// in number too.
func (l *Log) trim(n int64) error {
	for _, s := range l.segs {
		n += s.size
	}
	l.mu.Lock()
	for len(l.segs) > 1 && (n > l.maxBytes || int64(len(l.segs)) > 4*l.maxBytes/l.segmentBytes) {
		n -= l.segs[0].size
		l.doomed = append(l.doomed, segmentName(l.segs[0].seq))
		l.segs = slices.Delete(l.segs, 0, 1)
	}
	l.mu.Unlock()
	l.unsynced = slices.DeleteFunc(l.unsynced, func(seq uint64) bool { return seq < l.segs[0].seq })
	for len(l.doomed) > 0 {
		if err := l.root.Remove(l.doomed[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.doomed = l.doomed[1:]
	}
	return nil
}

// readSegment reads from the file of a segment. The file is opened for each
// piece: a reader holds nothing between two calls, neither descriptors nor the
// space of files that are gone.
func (l *Log) readSegment(seq uint64, b []byte, at int64) (n int, err error) {
	l.mu.RLock()
	root, closed := l.root, l.closed
	l.mu.RUnlock()
	if closed {
		return 0, fs.ErrClosed
	}
	if root == nil {
		if root, err = os.OpenRoot(l.dir); err != nil {
			return 0, err
		}
		defer root.Close()
	}
	f, err := root.Open(segmentName(seq))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b, at)
}

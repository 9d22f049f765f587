package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Reader reads a Log, for one goroutine at a time. It holds nothing that needs
// to be closed.
type Reader struct {
	log    *Log
	stream stream
	err    error // of the options

	// pos is up to where the log was gone through; next is up to where the reader
	// has it, in its own count. They differ for a reader of one stream, and while
	// the beginning is looked for.
	pos, next int64
	// notBefore and skipLines are set while the beginning is looked for.
	notBefore, skipLines int64

	disk diskSource
	held *block // of the tail; what Next returned last may be in it
	lost uint64 // the segment whose file was not there
}

// Reader returns a reader of what o chooses.
func (l *Log) Reader(o ReadOptions) *Reader {
	s, ok := streamOf(o.Stream)
	r := &Reader{log: l, stream: s}
	switch {
	case !ok:
		r.err = fmt.Errorf("read spool: stream %q is no output", o.Stream)
	case o.TailLines < 0:
		r.err = fmt.Errorf("read spool: %d lines from the end", o.TailLines)
	default:
		l.mu.RLock()
		defer l.mu.RUnlock()
		r.begin(o)
	}
	return r
}

// begin finds the last indexed place that is not after the beginning, and what
// to skip from there. Log.mu is held.
func (r *Reader) begin(o ReadOptions) {
	l, since := r.log, o.Since
	if since < 0 {
		since = max(l.end.own(r.stream)+since, 0)
	}
	first := l.first()
	var line, notBefore int64
	if o.TailLines > 0 {
		// The beginning is after newline number line.
		line = l.end.linesOf(r.stream) - int64(o.TailLines) + l.end.unfinished(r.stream)
		if line <= first.linesOf(r.stream) {
			line = 0
		}
	}
	if !o.SinceTime.IsZero() {
		if notBefore = nanos(o.SinceTime); first.latest >= notBefore {
			notBefore = 0
		}
	}
	if r.stream == none && line == 0 && notBefore == 0 {
		r.pos, r.next = since, since
		return
	}
	var from mark
	try := func(m mark) {
		if m.pos > from.pos && (m.own(r.stream) <= since || m.linesOf(r.stream) < line || m.latest < notBefore) {
			from = m
		}
	}
	for _, s := range l.segs {
		for _, p := range s.index {
			try(p.mark)
		}
	}
	for _, b := range l.tail.blocks {
		try(b.start)
	}
	r.pos, r.next = from.pos, max(since, from.own(r.stream))
	r.skipLines = max(line-from.linesOf(r.stream), 0)
	if from.latest < notBefore {
		r.notBefore = notBefore
	}
}

// first is the mark of the oldest byte that is kept. Log.mu is held.
func (l *Log) first() mark {
	if len(l.segs) > 0 && l.segs[0].start.pos <= l.tail.start.pos {
		return l.segs[0].start
	}
	return l.tail.start
}

// Next returns the next record, waiting for it if wait is set. Small records of
// one stream that follow each other closely come as one, of at most 256 KiB,
// with the time of the first. Data is valid until the next call and is shared:
// it must not be changed.
//
// The error is io.EOF when the log is finished and read, ErrNoMore when there is
// nothing and wait is not set, fs.ErrClosed when the log was closed, the cause
// of ctx when that ended, and otherwise one of reading the disk.
func (r *Reader) Next(ctx context.Context, wait bool) (Record, error) {
	if r.err != nil {
		return Record{}, r.err
	}
	for {
		if ctx.Err() != nil {
			return Record{}, context.Cause(ctx)
		}
		if r.held != nil {
			r.held.holders.Add(-1)
			r.held = nil
		}
		at := r.log.locate(r.pos)
		var rec Record
		var ok bool
		var err error
		switch {
		case at.err != nil:
			return Record{}, at.err
		case at.wake != nil && !wait:
			return Record{}, ErrNoMore
		case at.wake != nil:
			select {
			case <-at.wake:
			case <-ctx.Done():
			}
		case at.tail.recs != nil:
			r.disk.drop()
			r.held = at.tail.block
			rec, ok, err = r.scan(&at.tail)
		case at.seg.seq != 0 && at.seg.seq != r.lost:
			rec, ok, err = r.scanDisk(at.seg, at.jump)
		default:
			rec, ok = r.skipTo(at.jump)
		}
		if ok || err != nil {
			return rec, err
		}
	}
}

// where says what stands at a position; exactly one of wake, err, tail and seg
// is set, or none: then the log goes on at jump.
type where struct {
	wake <-chan struct{}
	err  error
	tail tailSource
	seg  extent
	// jump, beside seg, is where the segment ends.
	jump mark
}

// extent is the readable part of a segment, from an indexed place on.
type extent struct {
	seq, salt uint64
	from      place
	size      int64
}

func (l *Log) locate(pos int64) where {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.closed:
		return where{err: fmt.Errorf("read spool: %w", fs.ErrClosed)}
	case pos >= l.end.pos && l.finished:
		return where{err: io.EOF}
	case pos >= l.end.pos:
		if !l.waiting.Load() {
			l.waiting.Store(true)
		}
		return where{wake: l.wake}
	case pos >= l.tail.start.pos && len(l.tail.blocks) > 0:
		return where{tail: l.tail.view(pos)}
	}
	for _, s := range l.segs {
		switch {
		case s.end.pos <= pos:
		case s.start.pos > pos && s.start.pos > l.tail.start.pos:
			return where{jump: l.tail.start}
		case s.start.pos > pos:
			return where{jump: s.start}
		default:
			return where{seg: extent{s.seq, s.salt, s.find(pos), s.size}, jump: s.end}
		}
	}
	return where{jump: l.tail.start}
}

// source gives records in order.
type source interface {
	// peek returns the next record; a nil header is the end of the source.
	peek() (*header, []byte, error)
	pop()
	// join returns head and next, which follow each other, as one.
	join(head, next []byte) []byte
}

// scanDisk scans a segment, which ends at end.
func (r *Reader) scanDisk(e extent, end mark) (Record, bool, error) {
	r.disk.enter(r.log, e)
	rec, ok, err := r.scan(&r.disk)
	switch {
	case ok || err == nil && r.disk.at < e.size:
		return rec, ok, nil
	case errors.Is(err, fs.ErrNotExist):
		// Dropped in this moment; if not, the next round skips it.
		if r.log.keeps(e.seq) {
			r.lost = e.seq
		}
		return Record{}, false, nil
	case errors.Is(err, fs.ErrClosed):
		return Record{}, false, nil // finished or closed in this moment; locate tells
	case err != nil:
		return Record{}, false, fmt.Errorf("read spool: %w", err)
	}
	rec, ok = r.skipTo(end)
	return rec, ok, nil
}

func (l *Log) keeps(seq uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.segs {
		if s.seq == seq {
			return true
		}
	}
	return false
}

// scan goes through src up to the next record for the reader, and joins to it
// what it can.
func (r *Reader) scan(src source) (out Record, ok bool, err error) {
	var first *header
	for {
		h, data, err := src.peek()
		if err != nil && !ok {
			return Record{}, false, err
		}
		if err != nil || h == nil || ok && !r.joins(&out, first, h) {
			break
		}
		if gap, missing := r.missing(h); missing {
			return gap, true, nil
		}
		data = r.admit(h, data)
		src.pop()
		if len(data) == 0 {
			continue
		}
		if !ok {
			copied := *h
			first, ok = &copied, true
			at := int64(h.length - len(data))
			out = Record{Stream: h.stream.name(), Position: h.pos + at, Offset: h.off + at, Time: timeOf(h.time), Data: data}
			continue
		}
		out.Data = src.join(out.Data, data)
	}
	out.Data = out.Data[:len(out.Data):len(out.Data)]
	return out, ok, nil
}

func (r *Reader) joins(out *Record, first, h *header) bool {
	return h.kind == kindData && h.stream == first.stream && h.pos == out.Position+int64(len(out.Data)) &&
		len(out.Data)+h.length <= maxRecord && h.time-first.time <= joinWithin && first.time-h.time <= joinWithin
}

// own is where h begins in the reader's count; -1 if that is not known.
func (r *Reader) own(h *header) int64 {
	switch r.stream {
	case none:
		return h.pos
	case h.stream:
		return h.off
	}
	if h.stream == none {
		return -1
	}
	return h.pos - h.off
}

func (r *Reader) early(h *header) bool {
	return r.skipLines > 0 || r.notBefore > 0 && (h.kind != kindData || h.time < r.notBefore)
}

// missing returns the gap before h, once.
func (r *Reader) missing(h *header) (Record, bool) {
	own := r.own(h)
	if r.early(h) || own <= r.next {
		return Record{}, false
	}
	gap := Record{Stream: h.stream.name(), Position: h.pos, Offset: h.off, Gap: own - r.next, Time: timeOf(h.time)}
	if r.stream != none {
		gap.Stream, gap.Offset = r.stream.name(), own
	}
	r.next, r.pos = own, max(r.pos, h.pos)
	return gap, true
}

// admit goes past h and returns the part of its data that is for the reader.
func (r *Reader) admit(h *header, data []byte) []byte {
	r.pos = max(r.pos, h.end())
	early, own := r.early(h), r.own(h)
	if own < 0 {
		return nil
	}
	mine := h.kind == kindData && (r.stream == none || r.stream == h.stream)
	if early && r.skipLines > 0 && mine {
		data, early = r.skip(data)
	}
	if h.kind == kindData && h.time >= r.notBefore {
		r.notBefore = 0
	}
	if !mine || early || r.notBefore > 0 {
		if mine {
			own += int64(h.length)
		}
		r.next = max(r.next, own)
		return nil
	}
	end := own + int64(h.length)
	if end <= r.next {
		return nil
	}
	have := int64(len(data))
	data = data[have-min(have, end-r.next):]
	r.next = end
	return data
}

// skip drops the lines that are to be skipped, and says whether that was all.
func (r *Reader) skip(data []byte) (rest []byte, all bool) {
	for i, c := range data {
		if c != '\n' {
			continue
		}
		if r.skipLines--; r.skipLines == 0 {
			return data[i+1:], false
		}
	}
	return nil, true
}

// skipTo goes on at m and returns the gap before it.
func (r *Reader) skipTo(m mark) (Record, bool) {
	own := m.own(r.stream)
	gap := Record{Stream: r.stream.name(), Position: m.pos, Gap: own - r.next, Time: timeOf(m.latest)}
	if r.stream != none {
		gap.Offset = own
	}
	if gap.Gap > 0 && m.latest >= r.notBefore {
		// Some of what is missing is from then or later.
		r.notBefore = 0
	}
	r.pos, r.next = max(r.pos, m.pos), max(r.next, own)
	return gap, gap.Gap > 0 && r.skipLines == 0 && r.notBefore == 0
}

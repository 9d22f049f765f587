//go:build linux

package output

import (
	"bytes"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// BlockBytes is the size of the blocks that hold bulk output. One read fills
	// one, and it goes into the log as it is.
	BlockBytes = 128 << 10
	// mergeBytes is how much of what one stream writes within mergeTime is kept as
	// one run.
	mergeBytes = 32 << 10
	mergeTime  = 100 * time.Millisecond
	// FloorBytes are left to the log of a process that runs when memory is short.
	FloorBytes = 64 << 10
	// spareBlocks are kept for reuse by each log.
	spareBlocks = 2
)

var StreamNames = [2]api.Stream{api.Stdout, api.Stderr}

// Budget is the memory of all logs together.
type Budget struct {
	Max  int64
	Used atomic.Int64
}

// Over reports whether the logs hold more than the budget.
func (b *Budget) Over() bool { return b.Used.Load() > b.Max }

// Log keeps the last output of one process: both streams in the order in which
// they were read. It is safe for concurrent use.
type Log struct {
	limit  int64
	block  bool // the primary reader is waited for
	Budget *Budget

	mu       sync.Mutex
	runs     []outRun // in order, without holes
	start    int64    // position of the first byte kept
	end      int64
	offsets  [2]int64 // where each stream ends
	received int64    // what the primary reader has taken over
	// exempt: what comes from a program that has exited is not waited for.
	exempt bool
	// over: the process has ended for good.
	over  bool
	spare [][]byte
	grown chan struct{} // closed when there is more, or over; nil without a waiting reader
	freed chan struct{} // closed when there is space; nil without a waiting writer
}

// outRun is output of one stream that was read together.
type outRun struct {
	stream      int
	whole       bool // data is a block that can be reused
	pos, offset int64
	at          time.Time
	data        []byte
}

func (r *outRun) end() int64 { return r.pos + int64(len(r.data)) }

// NewLog returns the log of a process, which holds limit bytes of each stream. With block, a
// process that is ahead of its primary reader waits.
func NewLog(limit int64, block bool, b *Budget) *Log {
	return &Log{limit: limit, block: block, Budget: b}
}

// Space waits until the process may write, and says how much; 0 when quit was
// closed first. It does not wait where the log may drop.
func (l *Log) Space(quit <-chan struct{}) int64 {
	for {
		l.mu.Lock()
		if !l.block || l.exempt || l.over {
			l.mu.Unlock()
			return BlockBytes
		}
		waiting := l.end - max(l.received, l.start)
		most := l.limit
		if l.Budget.Over() {
			most = min(most, FloorBytes)
		}
		if waiting < most {
			l.mu.Unlock()
			return min(most-waiting, BlockBytes)
		}
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-quit:
			return 0
		}
	}
}

// Add appends a copy of p.
func (l *Log) Add(stream int, p []byte, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		n := 0
		if last := len(l.runs) - 1; last >= 0 {
			r := &l.runs[last]
			if r.stream == stream && !r.whole && len(r.data) < mergeBytes && now.Sub(r.at) < mergeTime {
				n = min(len(p), mergeBytes-len(r.data))
				r.data = append(r.data, p[:n]...)
			}
		}
		if n == 0 {
			n = min(len(p), mergeBytes)
			l.runs = append(l.runs, outRun{stream: stream, pos: l.end, offset: l.offsets[stream], at: now, data: append([]byte(nil), p[:n]...)})
		}
		l.grewLocked(stream, n)
		p = p[n:]
	}
	l.doneLocked()
}

// Give appends the first n bytes of a block and returns another block for it.
func (l *Log) Give(stream int, b []byte, n int, now time.Time) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, outRun{stream: stream, whole: true, pos: l.end, offset: l.offsets[stream], at: now, data: b[:n]})
	l.grewLocked(stream, n)
	l.doneLocked()
	if last := len(l.spare) - 1; last >= 0 {
		b = l.spare[last]
		l.spare = l.spare[:last]
		return b
	}
	return make([]byte, BlockBytes)
}

func (l *Log) grewLocked(stream, n int) {
	l.end += int64(n)
	l.offsets[stream] += int64(n)
	l.Budget.Used.Add(int64(n))
}

// doneLocked trims what is too much, and wakes the readers.
func (l *Log) doneLocked() {
	to := l.end - l.limit
	if l.block {
		to = min(to, max(l.received, l.start))
		if l.exempt {
			to = max(to, l.end-l.limit-DrainBytes)
		}
	}
	l.dropLocked(to)
	wake(&l.grown)
}

// wake closes a channel that readers wait on.
func wake(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// dropLocked forgets what is before a position.
func (l *Log) dropLocked(to int64) {
	if to = min(to, l.end); to <= l.start {
		return
	}
	l.Budget.Used.Add(l.start - to)
	l.start = to
	gone := 0
	for gone < len(l.runs) && l.runs[gone].end() <= to {
		if r := &l.runs[gone]; r.whole && len(l.spare) < spareBlocks {
			l.spare = append(l.spare, r.data[:BlockBytes:BlockBytes][:BlockBytes])
		}
		l.runs[gone] = outRun{}
		gone++
	}
	if l.runs = l.runs[gone:]; len(l.runs) == 0 {
		l.runs = nil
		return
	}
	if r := &l.runs[0]; r.pos < to {
		n := to - r.pos
		// Cut from the front it is no whole block any more.
		r.pos, r.offset, r.data, r.whole = to, r.offset+n, r.data[n:len(r.data):len(r.data)], false
	}
}

// Shrink forgets the oldest so that at most n bytes are held, but nothing that
// the primary reader is waited for. Without n it gives up its spare memory too.
func (l *Log) Shrink(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.end - n
	if l.block {
		to = min(to, l.received)
	}
	l.dropLocked(to)
	if n == 0 {
		l.spare = nil
	}
}

// Discard drops everything.
func (l *Log) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(l.end)
	l.spare = nil
}

// Written is how many bytes came, of both streams and of each.
func (l *Log) Written() (int64, [2]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end, l.offsets
}

// Take says that the primary reader has taken over what is before position.
func (l *Log) Take(position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position = min(position, l.end); position > l.received {
		l.received = position
		wake(&l.freed)
	}
}

// Exit says that the program has exited, and that what its pipes hold is not to
// be waited for; begin that another run has begun.
func (l *Log) Exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = true
	wake(&l.freed)
}

// Begin says that a run of the process begins.
func (l *Log) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = false
}

// Finish says that the process has ended for good, and its output is complete.
func (l *Log) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over, l.spare = true, nil
	wake(&l.grown)
	wake(&l.freed)
}

// More returns a channel that is closed when there is something after from, or
// the process has ended; over says that it has, and that there is nothing.
func (l *Log) More(from int64) (c <-chan struct{}, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end <= from && l.over {
		return nil, true
	}
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	c = l.grown
	if l.end > from {
		wake(&l.grown)
	}
	return c, false
}

// findLocked returns the index of the run that holds position, or the one after it.
func (l *Log) findLocked(position int64) int {
	return sort.Search(len(l.runs), func(i int) bool { return l.runs[i].end() > position })
}

// Frames appends what is kept from a position up to until as KindChunk frames,
// as much as fits into buf, and returns the position after it.
func (l *Log) Frames(buf []byte, from, until int64) ([]byte, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until = min(until, l.end); from < l.start && until > from {
		buf = wire.AppendChunk(buf, wire.Chunk{Position: l.start, Gap: l.start - from, Time: l.timeLocked()}, 0)
		from = l.start
	}
	for i := l.findLocked(from); from < until && i < len(l.runs); i++ {
		r := &l.runs[i]
		skip := from - r.pos
		n := min(int64(len(r.data))-skip, until-from, int64(cap(buf)-len(buf)-wire.ChunkFrameLen), wire.MaxData)
		if n <= 0 {
			break
		}
		buf = wire.AppendChunk(buf, wire.Chunk{Stream: StreamNames[r.stream], Position: from, Offset: r.offset + skip, Time: r.at}, int(n))
		buf = append(buf, r.data[skip:skip+n]...)
		from += n
		if skip+n < int64(len(r.data)) {
			break
		}
	}
	return buf, from
}

// timeLocked is when the first byte was read that is kept.
func (l *Log) timeLocked() time.Time {
	if len(l.runs) == 0 {
		return time.Now()
	}
	return l.runs[0].at
}

// Entry copies into buf the first run of stream, -1 for either, from a position
// up to until. ok is false without such a run.
func (l *Log) Entry(buf []byte, stream int, from, until int64) (e api.LogEntry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.findLocked(from); i < len(l.runs); i++ {
		r := &l.runs[i]
		if stream >= 0 && r.stream != stream {
			continue
		}
		pos := max(from, r.pos)
		if pos >= until {
			break
		}
		data := r.data[pos-r.pos : min(int64(len(r.data)), until-r.pos)]
		return api.LogEntry{Stream: StreamNames[r.stream], Position: pos, Offset: r.offset + pos - r.pos, Time: r.at, Data: append(buf[:0], data...)}, true
	}
	return api.LogEntry{}, false
}

// Dropped is the entry for what is missing of stream, -1 for both together, at
// the begin; ok is false where nothing is.
func (l *Log) Dropped(stream int) (e api.LogEntry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e = api.LogEntry{Stream: api.Stdout, Position: l.start, Gap: l.start, Offset: l.offsets[0], Time: l.timeLocked()}
	if stream >= 0 {
		e.Stream, e.Offset = StreamNames[stream], l.offsets[stream]
	}
	if i := slices.IndexFunc(l.runs, func(r outRun) bool { return stream < 0 || r.stream == stream }); i >= 0 {
		e.Stream, e.Offset, e.Time = StreamNames[l.runs[i].stream], l.runs[i].offset, l.runs[i].at
	}
	if stream >= 0 {
		e.Gap = e.Offset
	}
	return e, e.Gap > 0
}

// BatchBytes is how much output is sent with one write: two blocks, so that none
// is cut.
const BatchBytes = 2 * (BlockBytes + wire.ChunkFrameLen)

// Tail looks for the begin of the last n lines before until, and takes those that
// it sees off n. last says that no byte was seen after.
func (l *Log) Tail(stream int, until int64, n *int, last *bool) (from int64, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.runs) - 1; i >= 0; i-- {
		r := &l.runs[i]
		if stream >= 0 && r.stream != stream || r.pos >= until {
			continue
		}
		end := min(len(r.data), int(until-r.pos))
		if *last && end > 0 {
			*last = false
			if r.data[end-1] == '\n' {
				end-- // this newline ends the last line, it does not begin another
			}
		}
		for {
			nl := bytes.LastIndexByte(r.data[:end], '\n')
			if nl < 0 {
				break
			}
			if *n--; *n == 0 {
				return r.pos + int64(nl) + 1, true
			}
			end = nl
		}
	}
	return 0, false
}

// DrainBytes is how much output after the exit still counts: more than a pipe
// can hold.
const DrainBytes = 2 << 20

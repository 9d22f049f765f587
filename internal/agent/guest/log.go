//go:build linux

package guest

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// blockBytes is the size of the blocks that hold bulk output. One read fills
	// one, and it goes into the log as it is.
	blockBytes = 128 << 10
	// mergeBytes is how much of what one stream writes within mergeTime is kept as
	// one run.
	mergeBytes = 32 << 10
	mergeTime  = 100 * time.Millisecond
	// floorBytes are left to the log of a process that runs when memory is short.
	floorBytes = 64 << 10
	// spareBlocks are kept for reuse by each log.
	spareBlocks = 2
)

var streamNames = [2]api.Stream{api.Stdout, api.Stderr}

// budget is the memory of all logs together.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) over() bool { return b.used.Load() > b.max }

// outlog keeps the last output of one process: both streams in the order in which
// they were read. It is safe for concurrent use.
type outlog struct {
	limit  int64
	block  bool // the primary reader is waited for
	budget *budget

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
	grown chan struct{} // closed when there is more, or over; nil when nobody waits
	freed chan struct{} // closed when there is room; nil when nobody waits
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

func newOutlog(limit int64, block bool, b *budget) *outlog {
	return &outlog{limit: limit, block: block, budget: b}
}

// room waits until something may be read, and says how much; 0 when quit was
// closed first. It does not wait where the log may drop.
func (l *outlog) room(quit <-chan struct{}) int64 {
	for {
		l.mu.Lock()
		if !l.block || l.exempt || l.over {
			l.mu.Unlock()
			return blockBytes
		}
		waiting := l.end - max(l.received, l.start)
		most := l.limit
		if l.budget.over() {
			most = min(most, floorBytes)
		}
		if waiting < most {
			l.mu.Unlock()
			return min(most-waiting, blockBytes)
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

// add appends a copy of p.
func (l *outlog) add(stream int, p []byte, now time.Time) {
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

// give appends the first n bytes of a block and returns another block for it.
func (l *outlog) give(stream int, b []byte, n int, now time.Time) []byte {
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
	return make([]byte, blockBytes)
}

func (l *outlog) grewLocked(stream, n int) {
	l.end += int64(n)
	l.offsets[stream] += int64(n)
	l.budget.used.Add(int64(n))
}

// doneLocked trims what is too much, and wakes the readers.
func (l *outlog) doneLocked() {
	to := l.end - l.limit
	if l.block {
		to = min(to, max(l.received, l.start))
		if l.exempt {
			to = max(to, l.end-l.limit-drainBytes)
		}
	}
	l.dropLocked(to)
	wake(&l.grown)
}

// wake closes a channel that somebody waits on.
func wake(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// dropLocked forgets what is before a position.
func (l *outlog) dropLocked(to int64) {
	if to = min(to, l.end); to <= l.start {
		return
	}
	l.budget.used.Add(l.start - to)
	l.start = to
	gone := 0
	for gone < len(l.runs) && l.runs[gone].end() <= to {
		if r := &l.runs[gone]; r.whole && len(l.spare) < spareBlocks {
			l.spare = append(l.spare, r.data[:blockBytes:blockBytes][:blockBytes])
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

// shrink forgets the oldest so that at most n bytes are held, but nothing that
// the primary reader is waited for. Without n it gives up its spare memory too.
func (l *outlog) shrink(n int64) {
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

// forget drops everything.
func (l *outlog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(l.end)
	l.spare = nil
}

// held is how many bytes are kept.
func (l *outlog) held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - l.start
}

// written is how many bytes came, of both streams and of each.
func (l *outlog) written() (int64, [2]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end, l.offsets
}

// take says that the primary reader has taken over what is before position.
func (l *outlog) take(position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position = min(position, l.end); position > l.received {
		l.received = position
		wake(&l.freed)
	}
}

// exit says that the program has exited, and that what its pipes hold is not to
// be waited for; begin that another run has begun.
func (l *outlog) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = true
	wake(&l.freed)
}

func (l *outlog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = false
}

// finish says that the process has ended for good, and its output is complete.
func (l *outlog) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over, l.spare = true, nil
	wake(&l.grown)
	wake(&l.freed)
}

// more returns a channel that is closed when there is something after from, or
// the process has ended; over says that it has, and that there is nothing.
func (l *outlog) more(from int64) (c <-chan struct{}, over bool) {
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
func (l *outlog) findLocked(position int64) int {
	return sort.Search(len(l.runs), func(i int) bool { return l.runs[i].end() > position })
}

// frames appends what is kept from a position up to until as KindChunk frames,
// as much as fits into buf, and returns the position after it.
func (l *outlog) frames(buf []byte, from, until int64) ([]byte, int64) {
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
		buf = wire.AppendChunk(buf, wire.Chunk{Stream: streamNames[r.stream], Position: from, Offset: r.offset + skip, Time: r.at}, int(n))
		buf = append(buf, r.data[skip:skip+n]...)
		from += n
		if skip+n < int64(len(r.data)) {
			break
		}
	}
	return buf, from
}

// timeLocked is when the first byte was read that is kept.
func (l *outlog) timeLocked() time.Time {
	if len(l.runs) == 0 {
		return time.Now()
	}
	return l.runs[0].at
}

// entry copies into buf the first run of stream, -1 for either, from a position
// up to until. ok is false where there is none.
func (l *outlog) entry(buf []byte, stream int, from, until int64) (e api.LogEntry, ok bool) {
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
		return api.LogEntry{Stream: streamNames[r.stream], Position: pos, Offset: r.offset + pos - r.pos, Time: r.at, Data: append(buf[:0], data...)}, true
	}
	return api.LogEntry{}, false
}

// dropped is the entry for what is missing of stream, -1 for both together, at
// the begin; ok is false where nothing is.
func (l *outlog) dropped(stream int) (e api.LogEntry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e = api.LogEntry{Stream: api.Stdout, Position: l.start, Gap: l.start, Offset: l.offsets[0], Time: l.timeLocked()}
	if stream >= 0 {
		e.Stream, e.Offset = streamNames[stream], l.offsets[stream]
	}
	if i := slices.IndexFunc(l.runs, func(r outRun) bool { return stream < 0 || r.stream == stream }); i >= 0 {
		e.Stream, e.Offset, e.Time = streamNames[l.runs[i].stream], l.runs[i].offset, l.runs[i].at
	}
	if stream >= 0 {
		e.Gap = e.Offset
	}
	return e, e.Gap > 0
}

package spool

import (
	"sort"
	"sync/atomic"
)

// tail is the end of the log in memory: blocks that readers share. What a block
// holds is never changed, only added to, so a reader takes slices of it under
// Log.mu and uses them without. A reader holds the block that it was last given
// and nothing else: one that does not read on keeps that block from being used
// again, and one that is given up leaves it to the garbage collector.
type tail struct {
	// start is the mark from which on the tail knows everything.
	start  mark
	blocks []*block
	size   int
	max    int
	// spare is a free block.
	spare *block
}

// block is a run of records whose data stands in one piece.
type block struct {
	start, end mark
	data       []byte
	recs       []entry
	// holders are the readers that may use data and recs. It grows under Log.mu
	// only, while the block is in the tail.
	holders atomic.Int32
}

type entry struct {
	header
	at int // in block.data
}

const (
	minBlock = 4 << 10
	maxBlock = 64 << 10
	// maxBlockRecs bounds what a block of tiny records takes beside its data.
	maxBlockRecs = 512
	entrySize    = 64
)

// stage copies data to where push will find it. Nothing that readers see
// changes, so the writer does it without the lock. The block may be a new one.
func (t *tail) stage(now mark, data []byte) *block {
	var b *block
	size := minBlock
	if n := len(t.blocks); n > 0 {
		b = t.blocks[n-1]
		size = min(2*cap(b.data), maxBlock)
	}
	if b == nil || cap(b.data)-len(b.data) < len(data) || len(b.recs) == maxBlockRecs {
		b = t.fresh(max(size, len(data)))
		b.start, b.end = now, now
	}
	copy(b.data[len(b.data):cap(b.data)], data)
	return b
}

// fresh returns an empty block for n bytes. Those of a flood are used again, of
// which there would be thousands each second.
func (t *tail) fresh(n int) *block {
	for size := maxBlock; n > maxBlock && size <= maxRecord; size *= 2 {
		if n <= size {
			n = size
			break
		}
	}
	b := t.spare
	if b == nil || n < maxBlock || cap(b.data) < n {
		return &block{data: make([]byte, 0, n)}
	}
	t.spare = nil
	b.data, b.recs = b.data[:0], b.recs[:0]
	return b
}

// let releases the oldest block. Log.mu is held, so that no reader begins to hold
// it.
func (t *tail) let() {
	b := t.blocks[0]
	t.size -= b.cost()
	t.blocks[0] = nil
	t.blocks = t.blocks[1:]
	t.start = t.blocks[0].start
	if cap(b.data) >= maxBlock && b.holders.Load() == 0 {
		t.spare = b
	}
}

// push publishes what was staged in b. Log.mu is held.
func (t *tail) push(b *block, h *header) {
	if n := len(t.blocks); n == 0 || t.blocks[n-1] != b {
		if n == 0 {
			t.start = b.start
		}
		t.blocks = append(t.blocks, b)
		t.size += cap(b.data)
	}
	b.recs = append(b.recs, entry{header: *h, at: len(b.data)})
	b.data = b.data[:len(b.data)+h.length]
	b.end = b.end.after(h)
	t.size += entrySize
	for len(t.blocks) > 1 && t.size-t.blocks[0].cost() >= t.max {
		t.let()
	}
}

func (b *block) cost() int { return cap(b.data) + len(b.recs)*entrySize }

// view is the part of one block from pos on, which is then held. Log.mu is held,
// and pos is between the tail's start and its end.
func (t *tail) view(pos int64) tailSource {
	i := sort.Search(len(t.blocks), func(i int) bool { return t.blocks[i].end.pos > pos })
	b := t.blocks[i]
	first := sort.Search(len(b.recs), func(i int) bool { return b.recs[i].end() > pos })
	b.holders.Add(1)
	return tailSource{block: b, data: b.data[:len(b.data):len(b.data)], recs: b.recs[first:]}
}

// tailSource gives a reader the records of a block.
type tailSource struct {
	block *block
	data  []byte
	recs  []entry
}

func (s *tailSource) peek() (*header, []byte, error) {
	if len(s.recs) == 0 {
		return nil, nil, nil
	}
	e := &s.recs[0]
	return &e.header, s.data[e.at : e.at+e.length], nil
}

func (s *tailSource) pop() { s.recs = s.recs[1:] }

// join needs no copy: records that follow each other stand behind each other.
func (s *tailSource) join(head, next []byte) []byte { return head[:len(head)+len(next)] }

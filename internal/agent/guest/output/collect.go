//go:build linux

package output

import (
	"fmt"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// Collector keeps the head and the tail of both streams of one process, with
// exact counts and the order in which the kept bytes arrived.
type Collector struct {
	mu      sync.Mutex
	order   uint64
	last    *kept // whose bytes arrived last
	streams [2]kept
}

// kept is what is kept of one stream.
type kept struct {
	size    int64 // of the head and of the tail each
	head    []byte
	tail    []byte // a ring once it is full
	start   int    // of the oldest byte in tail
	dropped int64
	// runs partition head and tail by time of arrival.
	headRuns, tailRuns []span
}

// span is a number of bytes and when they arrived.
type span struct {
	order uint64
	n     int64
}

// maxSpans bounds the runs of each part of a stream. Beyond that, bytes count as
// arrived with the last run: the order of a very choppy output is coarser.
const maxSpans = 2048

const (
	Stdout = 0
	Stderr = 1
)

// NewCollector returns a collector that keeps maxOutput bytes of each stream, half of them from its
// beginning and half from its end.
func NewCollector(maxOutput int64) *Collector {
	c := &Collector{}
	for i := range c.streams {
		c.streams[i].size = max(maxOutput/2, 1)
	}
	return c
}

// Add takes bytes of a stream.
func (c *Collector) Add(stream int, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.streams[stream]
	if c.last != k {
		c.order++
		c.last = k
	}
	if n := min(k.size-int64(len(k.head)), int64(len(p))); n > 0 {
		k.head = append(k.head, p[:n]...)
		k.headRuns = extend(k.headRuns, c.order, n)
		p = p[n:]
	}
	if len(p) > 0 {
		k.addTail(p, c.order)
	}
}

func extend(runs []span, order uint64, n int64) []span {
	if last := len(runs) - 1; last >= 0 && (runs[last].order == order || len(runs) >= maxSpans) {
		runs[last].n += n
		return runs
	}
	return append(runs, span{order, n})
}

func (k *kept) addTail(p []byte, order uint64) {
	k.tailRuns = extend(k.tailRuns, order, int64(len(p)))
	over := int64(len(k.tail)) + int64(len(p)) - k.size
	if over > 0 {
		k.dropped += over
		k.forget(over)
	}
	if int64(len(p)) >= k.size {
		k.tail = append(k.tail[:0], p[int64(len(p))-k.size:]...)
		k.start = 0
		return
	}
	if n := min(k.size-int64(len(k.tail)), int64(len(p))); n > 0 {
		k.tail = append(k.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(k.tail[k.start:], p)
		p = p[n:]
		k.start = (k.start + n) % len(k.tail)
	}
}

// forget takes n bytes off the oldest runs of the tail.
func (k *kept) forget(n int64) {
	for n > 0 {
		m := min(n, k.tailRuns[0].n)
		k.tailRuns[0].n -= m
		n -= m
		if k.tailRuns[0].n == 0 {
			k.tailRuns = k.tailRuns[1:]
		}
	}
}

// result is what is kept of a stream, with the marker where bytes are missing,
// its counts, and its runs, in which the marker belongs to the head.
func (k *kept) result() ([]byte, api.StreamCounts, []span) {
	counts := api.StreamCounts{Kept: int64(len(k.head) + len(k.tail)), Dropped: k.dropped}
	out := append([]byte(nil), k.head...)
	runs := append([]span(nil), k.headRuns...)
	if k.dropped > 0 {
		nl := "\n"
		if len(out) > 0 && out[len(out)-1] == '\n' {
			nl = ""
		}
		mark := fmt.Sprintf("%s[cloche: %d bytes dropped]\n", nl, k.dropped)
		out = append(out, mark...)
		if last := len(runs) - 1; last >= 0 {
			runs[last].n += int64(len(mark))
		}
	}
	out = append(append(out, k.tail[k.start:]...), k.tail[:k.start]...)
	return out, counts, append(runs, k.tailRuns...)
}

// Finish fills r with what was kept.
func (c *Collector) Finish(r *api.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var runs [2][]span
	r.Stdout, r.StdoutInfo, runs[Stdout] = c.streams[Stdout].result()
	r.Stderr, r.StderrInfo, runs[Stderr] = c.streams[Stderr].result()
	r.Truncated = r.StdoutInfo.Dropped > 0 || r.StderrInfo.Dropped > 0
	names := [2]api.Stream{api.Stdout, api.Stderr}
	for len(runs[0])+len(runs[1]) > 0 {
		s := Stdout
		if len(runs[0]) == 0 || (len(runs[1]) > 0 && runs[1][0].order < runs[0][0].order) {
			s = Stderr
		}
		if last := len(r.Chunks) - 1; last >= 0 && r.Chunks[last].Stream == names[s] {
			r.Chunks[last].Len += runs[s][0].n
		} else {
			r.Chunks = append(r.Chunks, api.Chunk{Stream: names[s], Len: runs[s][0].n})
		}
		runs[s] = runs[s][1:]
	}
}

// Discard frees what was kept, after its result has been taken.
func (c *Collector) Discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = [2]kept{}
}

//go:build linux

package guest

import (
	"sync"
	"time"
)

// ring keeps the last bytes of one stream of one process, with their offsets and
// times. It is safe for concurrent use.
type ring struct {
	mu     sync.Mutex
	max    int64
	runs   []run
	held   int64
	offset int64 // bytes written ever
}

// run is output that arrived together.
type run struct {
	offset int64
	at     time.Time
	data   []byte
}

const (
	// runBytes is how much of what arrives within runTime of its first byte is
	// kept as one run.
	runBytes = 16 << 10
	runTime  = 100 * time.Millisecond
)

// add appends p and drops the oldest bytes over the limit.
func (r *ring) add(p []byte, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offset += int64(len(p))
	if over := int64(len(p)) - r.max; over > 0 {
		p = p[over:]
	}
	for len(p) > 0 {
		n := len(p)
		if last := len(r.runs) - 1; last >= 0 && len(r.runs[last].data) < runBytes && now.Sub(r.runs[last].at) < runTime &&
			r.runs[last].offset+int64(len(r.runs[last].data)) == r.offset-int64(len(p)) {
			n = min(n, runBytes-len(r.runs[last].data))
			r.runs[last].data = append(r.runs[last].data, p[:n]...)
		} else {
			n = min(n, runBytes)
			r.runs = append(r.runs, run{offset: r.offset - int64(len(p)), at: now, data: append([]byte(nil), p[:n]...)})
		}
		r.held += int64(n)
		p = p[n:]
	}
	r.trim(r.max)
}

// trim drops the oldest bytes until at most limit are held.
func (r *ring) trim(limit int64) {
	for r.held > limit {
		first := &r.runs[0]
		over := min(r.held-limit, int64(len(first.data)))
		r.held -= over
		first.data = first.data[over:]
		first.offset += over
		if len(first.data) == 0 {
			r.runs[0] = run{}
			r.runs = r.runs[1:]
		}
	}
	if len(r.runs) == 0 {
		r.runs = nil
	}
}

// drop forgets everything but the offsets. It returns by how much it shrank.
func (r *ring) drop() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.held
	r.runs, r.held = nil, 0
	return n
}

// snapshot returns what is held: the runs, whose bytes never change, and how
// many bytes were dropped before the first.
func (r *ring) snapshot() (runs []run, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.runs {
		x.data = x.data[:len(x.data):len(x.data)]
		runs = append(runs, x)
	}
	return runs, r.offset - r.held
}

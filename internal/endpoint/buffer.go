package endpoint

import "sync"

// A body goes on in pieces of at most a buffer. Each piece wakes two programs inside,
// which costs more than its bytes: large ones take a third of the time. What comes
// event by event fills no buffer, and may stay open for long.
const (
	smallBuffer = 16 << 10
	largeBuffer = 256 << 10
)

// buffers are large ones that are used again. The zero value has none.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool, for one response.
func (x *exchange) Get() []byte {
	if !x.large {
		return make([]byte, smallBuffer)
	}
	if p, ok := x.e.buffers.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, largeBuffer)
}

// Put implements httputil.BufferPool.
func (x *exchange) Put(p []byte) {
	if len(p) == largeBuffer {
		x.e.buffers.pool.Put(&p)
	}
}

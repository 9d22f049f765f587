package daemon

import "github.com/cloche-dev/cloche/internal/engine"

// Pool is how many sandboxes of one kind each engine keeps ready for the next requests; what a profile
// says goes before it.
type Pool struct {
	// Floor are kept from the first request of a kind on, Ceiling are never exceeded; a Ceiling of 0
	// keeps none.
	Floor, Ceiling int
	// Bytes is how much memory those of one engine have at most; 0 keeps none.
	Bytes int64
}

// poolOf is what the sandboxes of an app ask their engines to keep ready. One that ends with its
// sandboxes keeps none.
func poolOf(p Pool, ephemeral bool) engine.Pool {
	if ephemeral || p.Bytes == 0 {
		return engine.Pool{}
	}
	return engine.Pool{Floor: min(p.Floor, p.Ceiling), Ceiling: p.Ceiling}
}

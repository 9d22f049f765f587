// Package ctxio has I/O that ends with a context.
package ctxio

import (
	"context"
	"io"
)

// Reader returns a reader of r whose reads fail with the error of ctx once that has ended. A read that is in progress then goes
// on.
func Reader(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

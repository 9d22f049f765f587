// Package embed carries the executable of sandboxes that the build put into bin.
package embed

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Open returns the executable, which must be present. The caller closes it.
func Open() (io.ReadCloser, error) {
	r, err := zstd.NewReader(bytes.NewReader(packed()), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("unpack the executable of sandboxes: %w", err)
	}
	return r.IOReadCloser(), nil
}

// Present reports whether this build has the executable.
func Present() bool { return len(packed()) > 0 }

package ctxio_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/ctxio"
)

func TestReader(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := ctxio.Reader(ctx, strings.NewReader("content"))
	first := make([]byte, 3)
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "con" {
		t.Errorf("%q, %v", first, err)
	}
	cancel()
	if n, err := r.Read(first); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %d, %v", n, err)
	}
}

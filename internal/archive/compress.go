package archive

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/cloche-dev/cloche/api"
)

// maxWindow bounds the memory of a zstd decoder.
const maxWindow = 128 << 20

// Decompress reads r by the format that its first bytes show: gzip, zstd, bzip2
// or uncompressed. Close frees the decoder and leaves r
// alone.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	buf := bufio.NewReaderSize(r, 64<<10)
	head, err := buf.Peek(6)
	if err != nil && len(head) == 0 && err != io.EOF {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, broken("it begins like gzip and is not").WithCause(err)
		}
		return z, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, broken("it begins like zstd and is not").WithCause(err)
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(buf)), nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return nil, api.Errorf(api.CodeUnsupported, "archive: it is compressed with xz").
			WithHint("compress it with gzip or zstd")
	}
	return io.NopCloser(buf), nil
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

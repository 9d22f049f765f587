package intercept

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/redact"
)

// minMask is how long a text must be to be hidden in what comes back: shorter ones
// are everywhere.
const minMask = 6

// masks are texts that must not come back to the sandbox, the longest first.
type masks []string

func newMasks(texts []string) masks {
	var m masks
	for _, t := range texts {
		if len(t) >= minMask {
			m = append(m, t)
		}
	}
	slices.SortFunc(m, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	return slices.Compact(m)
}

// hide overwrites each text in b. The length stays, so what was said of it before
// is still true.
func (m masks) hide(b []byte) {
	for _, text := range m {
		for rest := b; ; {
			at := bytes.Index(rest, []byte(text))
			if at < 0 {
				break
			}
			for j := range text {
				rest[at+j] = '*'
			}
			rest = rest[at+len(text):]
		}
	}
}

// partial is how many bytes at the end of b may be the beginning of a text.
func (m masks) partial(b []byte) int {
	longest := 0
	for _, text := range m {
		tail := b[max(0, len(b)-len(text)+1):]
		for at := 0; at < len(tail) && len(tail)-at > longest; at++ {
			next := bytes.IndexByte(tail[at:], text[0])
			if next < 0 {
				break
			}
			if at += next; len(tail)-at > longest && strings.HasPrefix(text, string(tail[at:])) {
				longest = len(tail) - at
			}
		}
	}
	return longest
}

// header hides the texts in all fields and in their names.
func (m masks) header(h http.Header) {
	redact.Header(h, m, func(text string) string { return strings.Repeat("*", len(text)) })
}

// maskedBody hides texts in a stream. Only what may be the beginning of one waits
// for what comes next.
type maskedBody struct {
	io.ReadCloser
	masks masks
	buf   []byte // read and not given
	ready int    // of buf, which may be given
	err   error
	ended func() // called when the whole body was read; nil is nothing
}

const maskRead = 32 << 10

// Read implements io.Reader.
func (b *maskedBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for b.ready == 0 {
		if b.err != nil {
			return 0, b.err
		}
		from := len(b.buf)
		b.buf = slices.Grow(b.buf, maskRead)[:from+maskRead]
		n, err := b.ReadCloser.Read(b.buf[from:])
		b.buf, b.err = b.buf[:from+n], err
		b.masks.hide(b.buf)
		b.ready = len(b.buf)
		if errors.Is(err, io.EOF) && b.ended != nil {
			b.ended()
		}
		if !errors.Is(err, io.EOF) { // before an error, a beginning whose end is unknown is not shown
			b.ready -= b.masks.partial(b.buf)
		}
	}
	n := copy(p, b.buf[:b.ready])
	b.buf = b.buf[:copy(b.buf, b.buf[n:])]
	b.ready -= n
	return n, nil
}

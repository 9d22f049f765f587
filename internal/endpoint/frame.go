package endpoint

import (
	"strings"
	"sync/atomic"
)

// framing follows the requests on a connection, to tell one whose length is said in
// two ways: net/http takes one of them and forgets the other. Where the two would
// read different requests out of the same bytes, nothing worse comes of it than a
// request that is refused, or not: what goes on is framed anew.
type framing struct {
	// ambiguous is set, for good, by such a request.
	ambiguous atomic.Bool
	// opaque: it is HTTP no more.
	opaque atomic.Bool
	off    bool
	state  frameState
	line   []byte
	left   int64
	length int64
	sized  bool
	coded  bool
	blank  bool // nothing of the head was read yet
}

type frameState int

const (
	inHead frameState = iota
	inBody
	inSize
	inChunk
	inTrailer
)

// maxFrameLine bounds what is kept of a line.
const maxFrameLine = 64 << 10

// see takes bytes as they come.
func (f *framing) see(b []byte) {
	for len(b) > 0 && !f.off && !f.opaque.Load() {
		if f.state == inBody || f.state == inChunk {
			n := min(int64(len(b)), f.left)
			b, f.left = b[n:], f.left-n
			if f.left == 0 {
				f.after()
			}
			continue
		}
		end := strings.IndexByte(string(b), '\n')
		if end < 0 {
			f.line = append(f.line, b...)
			f.off = len(f.line) > maxFrameLine
			return
		}
		f.line = append(f.line, b[:end]...)
		b = b[end+1:]
		f.read(strings.TrimSuffix(string(f.line), "\r"))
		f.line = f.line[:0]
	}
}

// after is what comes when a body or chunk is over.
func (f *framing) after() {
	if f.state == inChunk {
		f.state = inSize
		return
	}
	f.begin()
}

func (f *framing) begin() {
	f.state, f.length, f.sized, f.coded, f.blank = inHead, 0, false, false, true
}

// read takes one line.
func (f *framing) read(line string) {
	switch f.state {
	case inTrailer:
		if line == "" {
			f.begin()
		}
	case inSize:
		size, _, _ := strings.Cut(line, ";")
		n, ok := number(strings.TrimSpace(size), 16)
		switch {
		case !ok:
			f.off = true
		case n == 0:
			f.state = inTrailer
		default:
			f.state, f.left = inChunk, n+2 // and the end of its line
		}
	default:
		f.head(line)
	}
}

func (f *framing) head(line string) {
	if line == "" {
		if f.blank {
			return
		}
		switch {
		case f.sized && f.coded:
			f.ambiguous.Store(true)
			f.off = true
		case f.coded:
			f.state = inSize
		case f.length > 0:
			f.state, f.left = inBody, f.length
		default:
			f.begin()
		}
		return
	}
	f.blank = false
	name, value, _ := strings.Cut(line, ":")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "content-length":
		f.sized = true
		n, ok := number(strings.TrimSpace(value), 10)
		f.length, f.off = n, f.off || !ok
	case "transfer-encoding":
		f.coded = true
	}
}

// number reads digits, up to what no body reaches.
func number(s string, base int64) (int64, bool) {
	if s == "" || len(s) > 15 {
		return 0, false
	}
	var n int64
	for _, c := range []byte(strings.ToLower(s)) {
		d := int64(c) - '0'
		if c >= 'a' {
			d = int64(c) - 'a' + 10
		}
		if d < 0 || d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}

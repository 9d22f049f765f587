//go:build linux

package fsop

import (
	"io"
	"time"

	"github.com/cloche-dev/cloche/internal/agent/guest/session"
)

// readAhead reads a stream on a goroutine of its own, some large pieces ahead:
// what the host sends and what is written to files then overlap, and the reader,
// which holds a thread of its own, is woken once for many frames.
type readAhead struct {
	full chan piece
	free chan []byte
	quit chan struct{}
	done chan struct{}
	rest []byte
	buf  []byte
	err  error
}

type piece struct {
	data []byte
	err  error
}

const (
	aheadPieces = 3
	aheadSize   = 512 << 10
)

func newReadAhead(r io.Reader) *readAhead {
	a := &readAhead{
		full: make(chan piece, aheadPieces), free: make(chan []byte, aheadPieces),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	for range aheadPieces {
		a.free <- nil
	}
	go a.pump(r)
	return a
}

func (a *readAhead) pump(r io.Reader) {
	defer close(a.done)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.quit:
			return
		}
		if buf == nil {
			buf = make([]byte, aheadSize)
		}
		n, err := readSome(r, buf)
		select {
		case a.full <- piece{buf[:n], err}:
		case <-a.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// readSome fills buf, except at the end.
func readSome(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (a *readAhead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.buf != nil {
			a.free <- a.buf[:cap(a.buf)]
			a.buf = nil
		}
		next := <-a.full
		a.buf, a.rest, a.err = next.data, next.data, next.err
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// close ends the reading. Where it was not at its end, nothing more is read of
// the stream, which is then good for an answer only. It returns the error with
// which the stream ended, nil for its proper end.
func (a *readAhead) close(p *session.Call) error {
	close(a.quit)
	select {
	case <-a.done:
	default:
		if a.err == nil {
			// It may wait for a sender that waits for us.
			_ = p.Stream.SetReadDeadline(time.Unix(1, 0))
		}
		<-a.done
	}
	if a.err == io.EOF { //nolint:errorlint // session.Data's own
		return nil
	}
	return a.err
}

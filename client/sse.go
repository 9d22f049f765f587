package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvent limits one line of an event stream, and the data of one event.
const maxEvent = 1 << 20

// sseEvent is one block of an event stream.
type sseEvent struct {
	id, name string
	data     []byte // until the next one is read
}

// sseReader reads an event stream (text/event-stream) block by block. Lines end
// with LF or CRLF.
type sseReader struct {
	sc   *bufio.Scanner
	data []byte
}

func newSSEReader(r io.Reader) *sseReader {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 16<<10), maxEvent)
	return &sseReader{sc: sc}
}

// next returns the next block that has an ID, a name or data. It skips comments. It drops a block
// that does not end with an empty line, as the format requires. io.EOF is the end.
func (s *sseReader) next() (sseEvent, error) {
	var ev sseEvent
	s.data = s.data[:0]
	any, lines := false, 0
	for s.sc.Scan() {
		line := bytes.TrimSuffix(s.sc.Bytes(), []byte("\r"))
		if len(line) == 0 {
			if !any {
				continue
			}
			ev.data = s.data
			return ev, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			ev.id, any = string(value), true
		case "event":
			ev.name, any = string(value), true
		case "data":
			if len(s.data)+len(value) >= maxEvent {
				return ev, brokenAnswer("the daemon sent an event over %d bytes", maxEvent)
			}
			if lines++; lines > 1 {
				s.data = append(s.data, '\n')
			}
			s.data, any = append(s.data, value...), true
		}
	}
	err := s.sc.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return ev, brokenAnswer("the daemon sent an event over %d bytes", maxEvent)
	case err != nil:
		return ev, err
	}
	return ev, io.EOF
}

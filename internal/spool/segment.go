package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
)

// segment is one file of the log. Its fields are changed by the writer alone,
// under Log.mu, and only in the last segment.
type segment struct {
	seq  uint64
	salt uint64
	// start and end are the marks before the first record and after the last.
	start, end mark
	// size is how much of the file holds whole records.
	size int64
	// index has a place for every indexEvery bytes of the file, the first record's
	// before all.
	index []place
}

// place is where a record begins in the file of its segment.
type place struct {
	mark
	at int64
}

const segmentSuffix = ".spool"

func segmentName(seq uint64) string { return fmt.Sprintf("%016x"+segmentSuffix, seq) }

func segmentSeq(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	seq, err := strconv.ParseUint(hex, 16, 64)
	return seq, err == nil && segmentName(seq) == name
}

func newSegment(seq, salt uint64, start mark) *segment {
	return &segment{
		seq: seq, salt: salt, start: start, end: start, size: segmentHeaderLen,
		index: []place{{mark: start, at: segmentHeaderLen}},
	}
}

// note takes up a record that stands at the end of the file.
func (s *segment) note(h *header) {
	if s.size-s.index[len(s.index)-1].at >= indexEvery {
		s.index = append(s.index, place{mark: s.end, at: s.size})
	}
	s.end = s.end.after(h)
	s.size += recordHeaderLen + int64(h.length)
}

// find is the last indexed place that is not after pos.
func (s *segment) find(pos int64) place {
	i := sort.Search(len(s.index), func(i int) bool { return s.index[i].pos > pos })
	return s.index[max(i-1, 0)]
}

// recoverSegment reads the headers of a file and leaves out whatever is damaged.
// finish is where the finishing record's data is; 0 without such a record. The error
// is one of reading; a file that is no segment is nil.
func recoverSegment(seq uint64, f io.ReaderAt, fileSize int64) (s *segment, finish place, length int, err error) {
	w := window{read: f.ReadAt, want: 8 << 10, limit: min(fileSize, maxSegment)}
	b, err := w.bytes(0, segmentHeaderLen)
	if err != nil {
		return nil, place{}, 0, err
	}
	salt, start, ok := decodeSegment(b)
	if !ok {
		return nil, place{}, 0, nil
	}
	s = newSegment(seq, salt, start)
	for {
		h, at, err := w.header(s.size, salt, &s.end)
		if errors.Is(err, io.EOF) {
			return s, finish, length, nil
		}
		if err != nil {
			return nil, place{}, 0, err
		}
		s.size = at
		if h.kind == kindFinish {
			finish, length = place{mark: s.end, at: at + recordHeaderLen}, h.length
		}
		s.note(&h)
	}
}

// intact reports whether the last record of s has the data that its header
// says, and where that record begins. Only a crash of the machine can leave a
// whole header with wrong data at the end.
func (s *segment) intact(f io.ReaderAt) (last place, ok bool, err error) {
	last = s.index[len(s.index)-1]
	w := window{read: f.ReadAt, want: indexEvery, limit: s.size}
	var h header
	for next := last; ; last = next {
		var at int64
		h, at, err = w.header(next.at, s.salt, &next.mark)
		if err != nil {
			if errors.Is(err, io.EOF) { // it is empty
				return last, true, nil
			}
			return last, false, err
		}
		last = place{mark: next.mark, at: at}
		next = place{mark: next.after(&h), at: at + recordHeaderLen + int64(h.length)}
		if next.at >= s.size {
			break
		}
	}
	data, err := w.bytes(last.at+recordHeaderLen, h.length)
	return last, err == nil && len(data) == h.length && sumOf(data) == h.sum, err
}

// cut takes the record at p, and all after it, out of s.
func (s *segment) cut(p place) {
	s.size, s.end = p.at, p.mark
	for len(s.index) > 1 && s.index[len(s.index)-1].at >= p.at {
		s.index = s.index[:len(s.index)-1]
	}
}

// window reads a file in pieces, forward.
type window struct {
	read func(b []byte, at int64) (int, error)
	// want is how much is read at once; limit is where reading ends.
	want  int
	limit int64

	buf []byte // what stands at at in the file
	at  int64
}

// has reports whether the window has n bytes at at.
func (w *window) has(at int64, n int) bool {
	return at >= w.at && at+int64(n) <= w.at+int64(len(w.buf))
}

// bytes returns n bytes at at, fewer only where the file or the limit ends. They
// are valid until the next call that reads.
func (w *window) bytes(at int64, n int) ([]byte, error) {
	if !w.has(at, n) {
		size := int(min(int64(max(w.want, n)), max(w.limit-at, 0)))
		if cap(w.buf) < size {
			w.buf = make([]byte, size)
		}
		w.buf, w.at = w.buf[:size], at
		got, err := w.read(w.buf, at)
		w.buf = w.buf[:got]
		if err != nil && !errors.Is(err, io.EOF) {
			w.buf = w.buf[:0]
			return nil, fmt.Errorf("read segment: %w", err)
		}
	}
	b := w.buf[at-w.at:]
	return b[:min(n, len(b))], nil
}

// header returns the first record at or after at that is whole and may follow m,
// and where it is; io.EOF without such a record. What is skipped is damaged.
func (w *window) header(at int64, salt uint64, m *mark) (header, int64, error) {
	var key [8]byte
	binary.LittleEndian.PutUint64(key[:], salt)
	for at+recordHeaderLen <= w.limit {
		b, err := w.bytes(at, recordHeaderLen)
		if err != nil {
			return header{}, 0, err
		}
		if len(b) < recordHeaderLen {
			break
		}
		h, ok := decodeHeader(b, salt)
		if ok && m.fits(&h) && at+recordHeaderLen+int64(h.length) <= w.limit {
			return h, at, nil
		}
		// The salt of the next record is all that can be looked for.
		at++
		rest := w.buf[at-w.at:]
		if i := bytes.Index(rest, key[:]); i >= 0 {
			at += int64(i)
		} else {
			at += int64(max(len(rest)-len(key)+1, 0))
		}
	}
	return header{}, 0, io.EOF
}

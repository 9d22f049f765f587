package spool

import (
	"errors"
	"io"
)

// diskSource gives a reader the records of one segment. Records whose sum is
// wrong are left out, and so become gaps.
type diskSource struct {
	seq, salt uint64
	at        int64 // of the next record
	mark      mark  // there
	w         window

	h     header // what peek found
	have  bool
	first bool // nothing was popped since enter
}

// readAhead is how much a reader takes from a file at once.
const readAhead = 128 << 10

// enter goes to e, or on in it.
func (d *diskSource) enter(l *Log, e extent) {
	if d.seq != e.seq {
		*d = diskSource{seq: e.seq, salt: e.salt}
	}
	if d.w.read == nil {
		d.w = window{want: readAhead, read: func(b []byte, at int64) (int, error) { return l.readSegment(e.seq, b, at) }}
	}
	if e.from.at > d.at {
		d.at, d.mark = e.from.at, e.from.mark
	}
	d.w.limit, d.have, d.first = e.size, false, true
}

// drop lets go of the buffer; the place stays.
func (d *diskSource) drop() { d.w = window{} }

func (d *diskSource) peek() (*header, []byte, error) {
	for {
		h, at, err := d.header()
		if errors.Is(err, io.EOF) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		data, err := d.w.bytes(at+recordHeaderLen, h.length)
		if err != nil {
			return nil, nil, err
		}
		d.at, d.h = at, h
		if len(data) == h.length && sumOf(data) == h.sum {
			return &d.h, data, nil
		}
		d.pass()
	}
}

// header finds the next record; io.EOF where the segment ends, and, once
// something was given out, where reading on would overwrite that.
func (d *diskSource) header() (header, int64, error) {
	if d.first {
		h, at, err := d.w.header(d.at, d.salt, &d.mark)
		if errors.Is(err, io.EOF) {
			d.at = d.w.limit
		}
		return h, at, err
	}
	if !d.w.has(d.at, recordHeaderLen) {
		return header{}, 0, io.EOF
	}
	h, ok := decodeHeader(d.w.buf[d.at-d.w.at:], d.salt)
	if !ok || !d.mark.fits(&h) || !d.w.has(d.at, recordHeaderLen+h.length) {
		return header{}, 0, io.EOF
	}
	return h, d.at, nil
}

// pass goes behind the record at d.at.
func (d *diskSource) pass() {
	d.mark = d.mark.after(&d.h)
	d.at += recordHeaderLen + int64(d.h.length)
}

func (d *diskSource) pop() {
	d.pass()
	d.first = false
}

// join moves next behind head. Both stand in the window, next after head, and
// what is between was read.
func (d *diskSource) join(head, next []byte) []byte { return append(head, next...) }

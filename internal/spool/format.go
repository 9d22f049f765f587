package spool

import (
	"encoding/binary"
	"hash/crc32"
)

// A segment is a file: one segment header, then records. A record is a header
// and its data. All numbers are little endian. Each record begins with the
// segment's salt, which is random and secret, so that a program whose
// output is in the log cannot write something that looks like a record.
//
//	segment  magic 8 · salt 8 · mark 56 · zero 4 · CRC32C of all before 4
//	record   salt 8 · CRC32C of the rest of the header 4 · CRC32C of the data 4 ·
//	         kind 1 · stream 1 · ends 1 · zero 1 · length 4 ·
//	         position 8 · offset 8 · time 8 · lines 4 · zero 4
//
// The header has a sum of its own so that the index can be rebuilt without
// reading the data; it covers the data's sum.
const (
	segmentMagic     = "clspool\x01"
	segmentHeaderLen = 80
	recordHeaderLen  = 56
	// maxPosition allows additions to a position that was read from a file.
	maxPosition = 1 << 62
)

type kind byte

const (
	kindData kind = 1 + iota
	// kindGap holds no data: its position is where the log goes on.
	kindGap
	// kindFinish is the last record of a finished log; its data is the reason.
	kindFinish
)

// header is what stands before the data of a record.
type header struct {
	kind   kind
	stream stream
	// ends: the data ends with a newline.
	ends   bool
	length int
	// lines counts the newlines in the data.
	lines          int
	sum            uint32
	pos, off, time int64
}

// end is the position after the record.
func (h *header) end() int64 {
	if h.kind == kindData {
		return h.pos + int64(h.length)
	}
	return h.pos
}

func sumOf(data []byte) uint32 {
	return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) // the table is made once, by crc32
}

func (h *header) encode(b []byte, salt uint64) {
	clear(b[:recordHeaderLen])
	le := binary.LittleEndian
	le.PutUint64(b, salt)
	le.PutUint32(b[12:], h.sum)
	b[16], b[17] = byte(h.kind), byte(h.stream+1)
	if h.ends {
		b[18] = 1
	}
	le.PutUint32(b[20:], uint32(h.length))
	le.PutUint64(b[24:], uint64(h.pos))
	le.PutUint64(b[32:], uint64(h.off))
	le.PutUint64(b[40:], uint64(h.time))
	le.PutUint32(b[48:], uint32(h.lines))
	le.PutUint32(b[8:], sumOf(b[12:recordHeaderLen]))
}

// decodeHeader reads a record header; false is anything that encode with this
// salt did not write.
func decodeHeader(b []byte, salt uint64) (header, bool) {
	le := binary.LittleEndian
	if len(b) < recordHeaderLen || le.Uint64(b) != salt || le.Uint32(b[8:]) != sumOf(b[12:recordHeaderLen]) {
		return header{}, false
	}
	h := header{
		kind: kind(b[16]), stream: stream(b[17]) - 1, ends: b[18] == 1,
		length: int(le.Uint32(b[20:])), lines: int(le.Uint32(b[48:])), sum: le.Uint32(b[12:]),
		pos: int64(le.Uint64(b[24:])), off: int64(le.Uint64(b[32:])), time: int64(le.Uint64(b[40:])),
	}
	return h, h.valid()
}

// valid bounds what a header may say.
func (h *header) valid() bool {
	if h.stream < none || h.stream > stderr || h.length < 0 || h.length > maxRecord || h.lines < 0 || h.lines > h.length ||
		h.pos < 0 || h.pos > maxPosition || h.off < 0 || h.off > h.pos || h.time < 0 {
		return false
	}
	switch h.kind {
	case kindData:
		return h.stream != none && h.length > 0
	case kindGap:
		return h.length == 0
	case kindFinish:
		return h.stream == none && h.length <= maxReason
	}
	return false
}

// mark is the state of the log at one place in it.
type mark struct {
	pos int64
	// off of each stream. After a gap of unknown streams their sum is less than
	// pos, until the next record tells.
	off [2]int64
	// lines counts the newlines before the place, in each stream.
	lines [2]int64
	// latest is the latest time of any record before the place.
	latest int64
	// open has openStdout, openStderr and openBoth where the last byte was not a
	// newline.
	open byte
}

const (
	openStdout byte = 1 << stdout
	openStderr byte = 1 << stderr
	openBoth   byte = 1 << 2
)

// fits reports whether h may follow at m.
func (m *mark) fits(h *header) bool {
	if h.pos < m.pos {
		return false
	}
	return h.stream == none || h.off >= m.off[h.stream] && h.pos-h.off >= m.off[h.stream.other()]
}

// after is the mark after h, which fits m.
func (m mark) after(h *header) mark {
	m.pos = h.end()
	if h.stream != none {
		m.off[h.stream] = h.off + int64(h.length)
		m.off[h.stream.other()] = h.pos - h.off
	}
	if h.kind == kindData {
		m.lines[h.stream] += int64(h.lines)
		m.latest = max(m.latest, h.time)
		m.open |= 1<<h.stream | openBoth
		if h.ends {
			m.open &^= 1<<h.stream | openBoth
		}
	}
	return m
}

// own is where m is in the count of a reader of s.
func (m *mark) own(s stream) int64 {
	if s == none {
		return m.pos
	}
	return m.off[s]
}

// linesOf counts the newlines that a reader of s has before m.
func (m *mark) linesOf(s stream) int64 {
	if s == none {
		return m.lines[stdout] + m.lines[stderr]
	}
	return m.lines[s]
}

// unfinished is 1 where a reader of s has an unfinished line before m.
func (m *mark) unfinished(s stream) int64 {
	bit := openBoth
	if s != none {
		bit = 1 << s
	}
	if m.open&bit != 0 {
		return 1
	}
	return 0
}

func encodeSegment(salt uint64, m mark) []byte {
	b := make([]byte, 0, segmentHeaderLen)
	le := binary.LittleEndian
	b = append(b, segmentMagic...)
	b = le.AppendUint64(b, salt)
	for _, n := range []int64{m.pos, m.off[0], m.off[1], m.lines[0], m.lines[1], m.latest, int64(m.open), 0} {
		b = le.AppendUint64(b, uint64(n))
	}
	b = b[:segmentHeaderLen-4]
	return le.AppendUint32(b, sumOf(b))
}

func decodeSegment(b []byte) (salt uint64, m mark, ok bool) {
	le := binary.LittleEndian
	if len(b) < segmentHeaderLen || string(b[:8]) != segmentMagic || le.Uint32(b[segmentHeaderLen-4:]) != sumOf(b[:segmentHeaderLen-4]) {
		return 0, mark{}, false
	}
	var n [7]int64
	for i := range n {
		n[i] = int64(le.Uint64(b[16+8*i:]))
		if n[i] < 0 || n[i] > maxPosition && i != 5 {
			return 0, mark{}, false
		}
	}
	m = mark{pos: n[0], off: [2]int64{n[1], n[2]}, lines: [2]int64{n[3], n[4]}, latest: n[5], open: byte(n[6])}
	return le.Uint64(b[8:]), m, n[1]+n[2] <= n[0]
}

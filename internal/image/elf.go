package image

import (
	"bytes"
	"encoding/binary"
	"io"
)

const (
	elfPage = 4096
	// elfHead is how much of a program is looked at: its header and the table of
	// its segments, which every linker writes first.
	elfHead    = 4096
	elfSegment = 56 // bytes of one entry of the table
	// maxSegments are in the table of a program that is looked at.
	maxSegments = 64

	elfLoad     = 1 // PT_LOAD
	elfWritable = 2 // PF_W
)

// parted is an agent program as it is packed: with a page of nothing between its
// constants and its variables, where a linker wrote these next to each other.
//
// gVisor joins what is mapped next to each other from places of one file that lie
// next to each other, until the first write to it. It copies what is written to
// by the two megabytes around it, and then the constants would be copied with the
// first variable: two megabytes of every sandbox that all could share, and
// writable besides.
type parted struct {
	program io.ReaderAt
	size    int64
	head    []byte // replaces the beginning
	cut     int64  // where the page goes; 0 is nowhere
}

// part looks at a program. What is no ELF executable of this kind stays as it is.
func part(program io.ReaderAt, size int64) parted {
	p := parted{program: program, size: size}
	head := make([]byte, min(elfHead, size))
	if _, err := program.ReadAt(head, 0); err != nil && err != io.EOF {
		return p
	}
	table := segmentTable(head)
	if table == nil {
		return p
	}
	cut := seam(table)
	if cut < int64(len(head)) || cut > size {
		return p
	}
	le := binary.LittleEndian
	for seg := range segments(table) {
		if off := le.Uint64(seg[8:]); off >= uint64(cut) {
			le.PutUint64(seg[8:], off+elfPage)
		}
	}
	// The table of sections, which nothing needs that executes the program, would
	// not be right any more.
	le.PutUint64(head[40:], 0)
	clear(head[58:64])
	p.head, p.cut = head, cut
	return p
}

// length is the length of the packed program.
func (p parted) length() int64 {
	if p.cut == 0 {
		return p.size
	}
	return p.size + elfPage
}

func (p parted) read() io.Reader {
	if p.cut == 0 {
		return io.NewSectionReader(p.program, 0, p.size)
	}
	done := int64(len(p.head))
	return io.MultiReader(bytes.NewReader(p.head), io.NewSectionReader(p.program, done, p.cut-done),
		bytes.NewReader(make([]byte, elfPage)), io.NewSectionReader(p.program, p.cut, p.size-p.cut))
}

// segmentTable is the table of segments in the head of a 64-bit little-endian
// ELF file; nil if it is not an ELF file or the table is not in the head.
func segmentTable(head []byte) []byte {
	if len(head) < 64 || string(head[:6]) != "\x7fELF\x02\x01" {
		return nil
	}
	le := binary.LittleEndian
	off, each, n := le.Uint64(head[32:]), le.Uint16(head[54:]), int(le.Uint16(head[56:]))
	if each != elfSegment || n == 0 || n > maxSegments || off < 64 || len(head) < n*elfSegment || off > uint64(len(head)-n*elfSegment) {
		return nil
	}
	return head[off : int(off)+n*elfSegment]
}

// segments yields the entries of a table.
func segments(table []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for ; len(table) >= elfSegment; table = table[elfSegment:] {
			if !yield(table[:elfSegment]) {
				return
			}
		}
	}
}

// seam is where in the file a writable segment begins that follows one that is not
// writable without a gap in memory or in the file; 0 is nowhere.
func seam(table []byte) int64 {
	le := binary.LittleEndian
	var end, shift uint64 // of the segment before, in memory, in pages that are whole
	before := false
	for seg := range segments(table) {
		if le.Uint32(seg) != elfLoad {
			continue
		}
		off, addr, size := le.Uint64(seg[8:]), le.Uint64(seg[16:]), le.Uint64(seg[32:])
		start := addr &^ (elfPage - 1)
		writable := le.Uint32(seg[4:])&elfWritable != 0
		if before && writable && start == end && addr-off == shift && off%elfPage == addr%elfPage {
			return int64(off &^ (elfPage - 1))
		}
		before, shift = !writable, addr-off
		end = (addr + size + elfPage - 1) &^ (elfPage - 1)
	}
	return 0
}

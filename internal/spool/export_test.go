package spool

import "encoding/binary"

// Mend corrects the sums of a segment, and of each record that follows
// another, so that a fuzzer gets behind them.
func Mend(b []byte) []byte {
	if len(b) < segmentHeaderLen {
		return b
	}
	le := binary.LittleEndian
	copy(b, segmentMagic)
	le.PutUint32(b[segmentHeaderLen-4:], sumOf(b[:segmentHeaderLen-4]))
	for r := b[segmentHeaderLen:]; len(r) >= recordHeaderLen; {
		copy(r[:8], b[8:16])
		n := min(int(le.Uint32(r[20:])), len(r)-recordHeaderLen)
		le.PutUint32(r[12:], sumOf(r[recordHeaderLen:recordHeaderLen+n]))
		le.PutUint32(r[8:], sumOf(r[12:recordHeaderLen]))
		r = r[recordHeaderLen+n:]
	}
	return b
}

package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// ChunkHeaderLen is the length of what stands before the bytes of a KindChunk:
// one byte of stream, then position, offset, time in nanoseconds and gap with
// eight bytes each, big endian.
const ChunkHeaderLen = 1 + 4*8

// ChunkFrameLen is the length of a KindChunk frame before its bytes.
const ChunkFrameLen = headerLen + ChunkHeaderLen

// The stream byte of a chunk.
const (
	chunkGap    = 0
	chunkStdout = api.FrameStdout
	chunkStderr = api.FrameStderr
)

// Chunk is the place of a run of output bytes, or of a gap, which has no bytes.
type Chunk struct {
	Stream api.Stream // empty for a gap
	// Position and Offset are of the first byte: in all output of the process,
	// and in the stream. Of a gap Position is the end.
	Position, Offset int64
	Time             time.Time
	Gap              int64
}

// AppendChunk appends the frame header and the chunk header for n bytes, which
// must follow in the same write.
func AppendChunk(b []byte, c Chunk, n int) []byte {
	b = append(b, byte(KindChunk))
	b = binary.BigEndian.AppendUint32(b, uint32(ChunkHeaderLen+n))
	switch c.Stream {
	case api.Stdout:
		b = append(b, chunkStdout)
	case api.Stderr:
		b = append(b, chunkStderr)
	default:
		b = append(b, chunkGap)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(c.Position))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Time.UnixNano()))
	return binary.BigEndian.AppendUint64(b, uint64(c.Gap))
}

// CutChunk splits the payload of a KindChunk into the place and the bytes.
func CutChunk(payload []byte) (Chunk, []byte, error) {
	if len(payload) < ChunkHeaderLen {
		return Chunk{}, nil, fmt.Errorf("read chunk: %w: %d bytes are shorter than its header", ErrFrame, len(payload))
	}
	data := payload[ChunkHeaderLen:]
	number := func(i int) int64 { return int64(binary.BigEndian.Uint64(payload[1+8*i:])) }
	c := Chunk{Position: number(0), Offset: number(1), Time: time.Unix(0, number(2)), Gap: number(3)}
	const most = 1 << 62 // sums of two stay positive
	if c.Position < 0 || c.Offset < 0 || c.Gap < 0 || c.Position > most || c.Offset > c.Position || c.Gap > c.Position {
		return Chunk{}, nil, fmt.Errorf("read chunk: %w: position %d, offset %d, gap %d", ErrFrame, c.Position, c.Offset, c.Gap)
	}
	switch payload[0] {
	case chunkStdout:
		c.Stream = api.Stdout
	case chunkStderr:
		c.Stream = api.Stderr
	case chunkGap:
	default:
		return Chunk{}, nil, fmt.Errorf("read chunk: %w: stream %d", ErrFrame, payload[0])
	}
	if gap := c.Stream == ""; gap != (c.Gap > 0) || gap != (len(data) == 0) {
		return Chunk{}, nil, fmt.Errorf("read chunk: %w: %d bytes with a gap of %d", ErrFrame, len(data), c.Gap)
	}
	return c, data, nil
}

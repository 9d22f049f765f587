package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func TestChunkThereAndBack(t *testing.T) {
	now := time.Unix(1_700_000_000, 123)
	for _, c := range []Chunk{
		{Stream: api.Stdout, Position: 1 << 40, Offset: 7, Time: now},
		{Stream: api.Stderr, Time: now},
		{Position: 99, Gap: 99, Time: now},
	} {
		data := []byte("output")
		if c.Gap > 0 {
			data = nil
		}
		frame := append(AppendChunk([]byte("before"), c, len(data)), data...)
		kind, payload, err := NewReader(bytes.NewReader(frame[len("before"):])).Next()
		if err != nil || kind != KindChunk {
			t.Fatal(kind, err)
		}
		got, rest, err := CutChunk(payload)
		if err != nil || got != c || !bytes.Equal(rest, data) {
			t.Fatalf("%+v, %q, %v, want %+v", got, rest, err, c)
		}
	}
}

func FuzzCutChunk(f *testing.F) {
	f.Add(AppendChunk(nil, Chunk{Stream: api.Stdout, Position: 5, Offset: 3}, 1)[headerLen:])
	f.Add(AppendChunk(nil, Chunk{Position: 5, Gap: 5}, 0)[headerLen:])
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, data, err := CutChunk(in)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Fatal(err)
			}
			return
		}
		if c.Position < 0 || c.Offset < 0 || c.Offset > c.Position || c.Gap < 0 || c.Gap > c.Position || (c.Gap > 0) != (len(data) == 0) || (c.Stream == "") != (c.Gap > 0) {
			t.Fatalf("%+v with %d bytes", c, len(data))
		}
		if c.Position+int64(len(data)) < c.Position {
			t.Fatal("the end is before the begin")
		}
		if again := AppendChunk(nil, c, len(data)); !bytes.Equal(again[headerLen:], in[:ChunkHeaderLen]) {
			t.Fatalf("%x is not %x", again[headerLen:], in[:ChunkHeaderLen])
		}
	})
}

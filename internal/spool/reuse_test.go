package spool_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

// flood appends n records of size bytes, each filled with its number.
func flood(t *testing.T, l *spool.Log, n, size int) {
	t.Helper()
	b := make([]byte, size)
	for i := range n {
		for j := range b {
			b[j] = byte(i)
		}
		at := l.End()
		must(t, l.Append(spool.Record{Stream: api.Stdout, Position: at, Offset: at, Data: b}))
	}
}

// TestBlocksAreUsedAgain: a flood needs no new memory for each record.
func TestBlocksAreUsedAgain(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir(), MaxBytes: 4 << 20})
	const n, size = 256, 100 << 10
	flood(t, l, 16, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	flood(t, l, n, size)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > n*size/8 {
		t.Errorf("%d bytes were allocated for %d", got, n*size)
	}
}

// TestHeldBlockStays: what a reader was given does not change until its next
// call, whatever is written meanwhile, and whichever readers there are.
func TestHeldBlockStays(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir(), MaxBytes: 4 << 20})
	const size = 100 << 10
	for range 4 {
		held, other := l.Reader(spool.ReadOptions{Since: l.End()}), l.Reader(spool.ReadOptions{Since: l.End()})
		flood(t, l, 1, size)
		rec, err := held.Next(t.Context(), false)
		must(t, err)
		want := bytes.Clone(rec.Data)
		for range 8 {
			flood(t, l, 3, size)
			_, err := other.Next(t.Context(), false)
			must(t, err)
		}
		if !bytes.Equal(rec.Data, want) {
			t.Fatal("the data of a reader that stood still was overwritten")
		}
	}
}

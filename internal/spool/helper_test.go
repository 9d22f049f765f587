package spool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

func open(t testing.TB, o spool.Options) *spool.Log {
	t.Helper()
	l, err := spool.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// writer appends with the right positions and offsets.
type writer struct {
	t   testing.TB
	log *spool.Log
	pos int64
	off map[api.Stream]int64
	now time.Time
}

func newWriter(t testing.TB, l *spool.Log) *writer {
	return &writer{t: t, log: l, off: map[api.Stream]int64{}, now: time.Unix(1_700_000_000, 0).UTC()}
}

// next is the record that would be appended.
func (w *writer) next(s api.Stream, data string) spool.Record {
	r := spool.Record{Stream: s, Position: w.pos, Offset: w.off[s], Time: w.now, Data: []byte(data)}
	w.pos += int64(len(data))
	w.off[s] += int64(len(data))
	return r
}

func (w *writer) write(s api.Stream, data string) {
	w.t.Helper()
	if err := w.log.Append(w.next(s, data)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) out(data string) { w.t.Helper(); w.write(api.Stdout, data) }
func (w *writer) err(data string) { w.t.Helper(); w.write(api.Stderr, data) }

// lose makes a hole in one stream that is not told apart.
func (w *writer) lose(s api.Stream, n int64) {
	w.pos += n
	w.off[s] += n
}

// read returns what a reader gets until there is nothing more now.
func read(t testing.TB, r *spool.Reader) []spool.Record {
	t.Helper()
	var out []spool.Record
	for {
		rec, err := r.Next(context.Background(), false)
		if errors.Is(err, spool.ErrNoMore) || errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		rec.Data = slices.Clone(rec.Data)
		out = append(out, rec)
	}
}

// text shows records as "text" and <gap>.
func text(recs []spool.Record) string {
	var s string
	for _, r := range recs {
		if r.Gap > 0 {
			s += fmt.Sprintf("<%d>", r.Gap)
		}
		s += string(r.Data)
	}
	return s
}

// cell is one byte of the model; a hole has no stream.
type cell struct {
	stream api.Stream
	b      byte
}

// model is all that was ever written, by position.
type model struct {
	cells []cell
	off   map[api.Stream]int64
	// records are the ends and sizes of what was appended, in order.
	ends  []int64
	sizes []int64
}

func newModel() *model { return &model{off: map[api.Stream]int64{}} }

func (m *model) end() int64 { return int64(len(m.cells)) }

func (m *model) add(s api.Stream, data []byte) {
	for _, b := range data {
		m.cells = append(m.cells, cell{s, b})
	}
	m.off[s] += int64(len(data))
	m.ends = append(m.ends, m.end())
	m.sizes = append(m.sizes, int64(len(data)))
}

func (m *model) lose(s api.Stream, n int64) {
	m.cells = append(m.cells, make([]cell, n)...)
	m.off[s] += n
}

// mustKeep is from where on a log of maxBytes has everything: its newest three
// quarters, less what headers take.
func (m *model) mustKeep(maxBytes int64) int64 {
	var sum int64
	for i, end := range slices.Backward(m.ends) {
		// A record may be cut into pieces, each with a header.
		if sum += m.sizes[i] + 56*(1+m.sizes[i]/512); sum > maxBytes*3/4 {
			return end
		}
	}
	return 0
}

// checkBoth reads both streams from since and compares every byte.
func (m *model) checkBoth(t testing.TB, recs []spool.Record, since, kept int64) {
	t.Helper()
	at := since
	for i, r := range recs {
		at += r.Gap
		if r.Position != at || r.Gap > 0 && len(r.Data) > 0 || r.Gap == 0 && len(r.Data) == 0 || r.Gap < 0 {
			t.Fatalf("record %d of %d: position %d, gap %d, %d bytes; want position %d", i, len(recs), r.Position, r.Gap, len(r.Data), at)
		}
		if r.Gap > 0 {
			for p := max(at-r.Gap, kept); p < at; p++ {
				if m.cells[p].stream != "" {
					t.Fatalf("gap of %d before %d: byte %d should be kept (from %d on)", r.Gap, at, p, kept)
				}
			}
			continue
		}
		for j, b := range r.Data {
			if c := m.cells[at+int64(j)]; c.stream != r.Stream || c.b != b {
				t.Fatalf("byte %d: %q of %s, want %q of %q", at+int64(j), b, r.Stream, c.b, c.stream)
			}
		}
		at += int64(len(r.Data))
	}
	if at != max(m.end(), since) {
		t.Fatalf("the reader ends at %d, want %d", at, m.end())
	}
}

// checkOne reads one stream from an offset and compares every byte.
func (m *model) checkOne(t testing.TB, recs []spool.Record, s api.Stream, since int64) {
	t.Helper()
	at := since
	for i, r := range recs {
		at += r.Gap
		if r.Stream != s || r.Offset != at {
			t.Fatalf("record %d: offset %d of %s, want %d of %s", i, r.Offset, r.Stream, at, s)
		}
		for j, b := range r.Data {
			if c := m.cells[r.Position+int64(j)]; c.stream != s || c.b != b {
				t.Fatalf("byte at position %d: %q, want %q of %q", r.Position+int64(j), b, c.b, c.stream)
			}
		}
		at += int64(len(r.Data))
	}
	if at > max(m.off[s], since) {
		t.Fatalf("the reader ends at offset %d of %d", at, m.off[s])
	}
}

// lastSegment is the path of the newest file of a log.
func lastSegment(t testing.TB, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no segments in %s: %v", dir, err)
	}
	return slices.Max(names)
}

func bytesOf(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(rnd.Uint32()); rnd.IntN(20) == 0 {
			b[i] = '\n'
		}
	}
	return b
}

func diskUse(t testing.TB, dir string) (n int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

package spool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

// pattern is the byte at an offset of a stream, so that a reader can tell right
// bytes from wrong ones without a copy of all.
func pattern(s api.Stream, off int64) byte {
	return byte(off*2654435761>>7) ^ s[3] // 'o' or 'e': "stdout", "stderr"
}

func fill(s api.Stream, off int64, b []byte) {
	for i := range b {
		b[i] = pattern(s, off+int64(i))
	}
}

// TestConcurrentReaders runs followers, slow readers and readers that come and
// go beside the writer.
func TestConcurrentReaders(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir(), MaxBytes: 1 << 20, TailBytes: 64 << 10})
	var wg sync.WaitGroup
	for i := range 16 {
		o := spool.ReadOptions{Stream: []api.Stream{"", api.Stdout, api.Stderr}[i%3]}
		wg.Go(func() {
			for leave := i % 4 * 10; ; leave-- {
				ended, err := follow(l, o, i, leave > 0)
				if err != nil {
					t.Error(err)
				}
				if ended {
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	off := map[api.Stream]int64{}
	var pos int64
	buf := make([]byte, 8<<10)
	for range 4000 {
		s := pick(rnd)
		b := buf[:1+rnd.IntN(len(buf))]
		fill(s, off[s], b)
		must(t, l.Append(spool.Record{Stream: s, Position: pos, Offset: off[s], Time: time.Now(), Data: b}))
		pos += int64(len(b))
		off[s] += int64(len(b))
	}
	must(t, l.Finish("done"))
	wg.Wait()
}

// follow checks what reader i gets; where it leaves it comes back to the beginning.
func follow(l *spool.Log, o spool.ReadOptions, i int, leave bool) (ended bool, err error) {
	r, at, reads := l.Reader(o), o.Since, 0
	for {
		rec, err := r.Next(context.Background(), true)
		if errors.Is(err, io.EOF) {
			out, errs := l.Offsets()
			want := map[api.Stream]int64{"": l.End(), api.Stdout: out, api.Stderr: errs}[o.Stream]
			if at != want {
				return true, fmt.Errorf("reader %d ends at %d, want %d", i, at, want)
			}
			return true, nil
		}
		if err != nil {
			return true, err
		}
		at += rec.Gap
		if got := rec.Offset; o.Stream != "" && got != at || o.Stream == "" && rec.Position != at {
			return true, fmt.Errorf("reader %d: position %d offset %d, want %d", i, rec.Position, got, at)
		}
		for j, b := range rec.Data {
			if want := pattern(rec.Stream, rec.Offset+int64(j)); b != want {
				return true, fmt.Errorf("reader %d: %x at offset %d of %s, want %x", i, b, rec.Offset+int64(j), rec.Stream, want)
			}
		}
		at += int64(len(rec.Data))
		if reads++; leave && reads == 50 {
			return false, nil
		}
		if i%4 == 2 && reads%10 == 0 {
			time.Sleep(time.Millisecond) // a slow reader: not a wait for anything
		}
	}
}

// TestReaderThatNeverReads: the writer and another reader do not notice.
func TestReaderThatNeverReads(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir(), MaxBytes: 256 << 10})
	w := newWriter(t, l)
	w.out("x")
	stuck := l.Reader(spool.ReadOptions{})
	if _, err := stuck.Next(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	r := l.Reader(spool.ReadOptions{Since: l.End()})
	block := strings.Repeat("y", 10_000)
	for range 500 {
		w.out(block)
		if got := text(read(t, r)); got != block {
			t.Fatalf("%d bytes", len(got))
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10, 256 << 10} {
		for _, followers := range []int{0, 1} {
			b.Run(fmt.Sprintf("size=%d/followers=%d", size, followers), func(b *testing.B) {
				l := open(b, spool.Options{Dir: b.TempDir()})
				var wg sync.WaitGroup
				var read, missed int64
				for range followers {
					wg.Go(func() {
						r := l.Reader(spool.ReadOptions{})
						for {
							rec, err := r.Next(context.Background(), true)
							if err != nil {
								return
							}
							read += int64(len(rec.Data))
							missed += rec.Gap
						}
					})
				}
				data, now := []byte(strings.Repeat("0123456789abcdef 0123456789abcde\n", size/33+1))[:size], time.Now()
				b.SetBytes(int64(size))
				var pos int64
				for b.Loop() {
					must(b, l.Append(spool.Record{Stream: api.Stdout, Position: pos, Offset: pos, Time: now, Data: data}))
					pos += int64(size)
				}
				must(b, l.Finish("done"))
				wg.Wait()
				if followers > 0 {
					b.ReportMetric(100*float64(read)/float64(read+missed), "%read")
				}
			})
		}
	}
}

// BenchmarkPlainWrite is the floor of BenchmarkAppend: the same bytes into files
// of the same size, and nothing else.
func BenchmarkPlainWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			dir, data := b.TempDir(), make([]byte, size)
			b.SetBytes(int64(size))
			var f *os.File
			var at int64
			for i := 0; b.Loop(); i++ {
				if f == nil || at+int64(size) > 8<<20 {
					var err error
					_ = f.Close() // the first is nil
					name := filepath.Join(dir, fmt.Sprint(i*size/(8<<20)%8))
					_ = os.Remove(name)
					f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
					must(b, err)
					at = 0
				}
				_, err := f.WriteAt(data, at)
				must(b, err)
				at += int64(size)
			}
			must(b, f.Close())
		})
	}
}

func BenchmarkReadDisk(b *testing.B) {
	l := open(b, spool.Options{Dir: b.TempDir()})
	w := newWriter(b, l)
	line := strings.Repeat("0123456789abcde\n", 256)
	for range 8 << 10 {
		w.out(line)
	}
	b.SetBytes(w.pos)
	for b.Loop() {
		r := l.Reader(spool.ReadOptions{})
		for {
			if _, err := r.Next(context.Background(), false); err != nil {
				break
			}
		}
	}
}

// BenchmarkLatency is the time from Append to when the last follower has it.
func BenchmarkLatency(b *testing.B) {
	for _, followers := range []int{1, 200} {
		b.Run(fmt.Sprintf("followers=%d", followers), func(b *testing.B) {
			l := open(b, spool.Options{Dir: b.TempDir()})
			got := make(chan time.Time, followers)
			for range followers {
				go func() {
					r := l.Reader(spool.ReadOptions{})
					for {
						if _, err := r.Next(context.Background(), true); err != nil {
							return
						}
						got <- time.Now()
					}
				}()
			}
			data := []byte("a line of output, as a program writes it\n")
			var pos int64
			var first, last time.Duration
			n := 0
			for b.Loop() {
				start := time.Now()
				must(b, l.Append(spool.Record{Stream: api.Stdout, Position: pos, Offset: pos, Time: start, Data: data}))
				pos += int64(len(data))
				for i := range followers {
					at := (<-got).Sub(start)
					if i == 0 {
						first += at
					}
					if i == followers-1 {
						last += at
					}
				}
				n++
			}
			b.ReportMetric(float64(first.Nanoseconds())/float64(n), "ns/first")
			b.ReportMetric(float64(last.Nanoseconds())/float64(n), "ns/last")
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	o := spool.Options{Dir: b.TempDir()}
	l := open(b, o)
	w := newWriter(b, l)
	for range 500_000 {
		w.out("a line of output, as a program writes it: some eighty bytes with all its words.\n")
	}
	must(b, l.Close())
	for b.Loop() {
		l, err := spool.Open(o)
		must(b, err)
		must(b, l.Close())
	}
}

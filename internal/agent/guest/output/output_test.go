//go:build linux

package output

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// unframe reads what frames wrote.
func unframe(t *testing.T, buf []byte) (cs []wire.Chunk, datas [][]byte) {
	t.Helper()
	for r := wire.NewReader(bytes.NewReader(buf)); ; {
		kind, payload, err := r.Next()
		if err != nil {
			return cs, datas
		}
		c, data, err := wire.CutChunk(payload)
		if err != nil || kind != wire.KindChunk {
			t.Fatal(kind, err)
		}
		cs, datas = append(cs, c), append(datas, bytes.Clone(data))
	}
}

// TestLogAgainstModel compares a log with all that was ever written.
func TestLogAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		limit := int64(1 + rnd.IntN(300_000))
		b := &Budget{Max: 1 << 40}
		l := NewLog(limit, false, b)
		var all []byte    // both streams
		var which []int   // stream of each byte, by run
		var ends []int    // where each run of which ends
		var offs [2]int64 // of the streams
		block := make([]byte, BlockBytes)
		now := time.Unix(0, 0)
		at := make([]int64, 3) // three followers
		var seen [3]int64      // bytes and gaps that each was given
		for range 300 {
			stream, n := rnd.IntN(2), 1+rnd.IntN(3000)
			now = now.Add(time.Duration(rnd.IntN(60)) * time.Millisecond)
			if rnd.IntN(8) == 0 {
				n = BlockBytes/2 + 1 + rnd.IntN(BlockBytes/2)
			}
			data := block[:n]
			for i := range data {
				data[i] = byte(rnd.Uint32())
			}
			all, which, ends = append(all, data...), append(which, stream), append(ends, len(all)+n)
			offs[stream] += int64(n)
			if n > BlockBytes/2 {
				block = l.Give(stream, block, n, now)
			} else {
				l.Add(stream, data, now)
			}
			if end, o := l.Written(); end != int64(len(all)) || o != offs {
				t.Fatalf("seed %d: written %d %v", seed, end, o)
			}
			if l.held() != min(limit, int64(len(all))) || b.Used.Load() != l.held() {
				t.Fatalf("seed %d: %d held, %d counted, of %d", seed, l.held(), b.Used.Load(), limit)
			}
			f := rnd.IntN(4)
			if f == 3 {
				continue
			}
			buf, next := l.Frames(make([]byte, 0, 100+rnd.IntN(BatchBytes)), at[f], int64(len(all)))
			cs, datas := unframe(t, buf)
			for i, c := range cs {
				if c.Position-c.Gap != at[f] {
					t.Fatalf("seed %d: %+v at %d", seed, c, at[f])
				}
				if c.Gap > 0 && c.Position != int64(len(all))-min(limit, int64(len(all))) {
					t.Fatalf("seed %d: gap to %d", seed, c.Position)
				}
				if !bytes.Equal(datas[i], all[c.Position:c.Position+int64(len(datas[i]))]) {
					t.Fatalf("seed %d: other bytes at %d", seed, c.Position)
				}
				at[f] = c.Position + int64(len(datas[i]))
				seen[f] += c.Gap + int64(len(datas[i]))
				checkStream(t, c, len(datas[i]), which, ends)
			}
			if next != at[f] || seen[f] != at[f] {
				t.Fatalf("seed %d: at %d, %d seen, %d said", seed, at[f], seen[f], next)
			}
		}
		l.Discard()
		if b.Used.Load() != 0 {
			t.Fatalf("seed %d: %d counted after all was forgotten", seed, b.Used.Load())
		}
	}
}

func FuzzLastLine(f *testing.F) {
	f.Add([]byte("one\ntwo\n\n  \n"), 3)
	f.Add([]byte("é\nlong "+strings.Repeat("é", 200)), 7)
	f.Add([]byte("a\rb\r\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step <= 0 || len(in) > 10_000 {
			return
		}
		var l LastLine
		for rest := in; len(rest) > 0; {
			n := min(step, len(rest))
			l.Add(rest[:n])
			rest = rest[n:]
		}
		// The last line whose first bytes are not blank, and those bytes of it.
		want := []byte(nil)
		for line := range bytes.SplitSeq(in, []byte("\n")) {
			if line = cut(line); len(bytes.TrimSpace(line)) > 0 {
				want = line
			}
		}
		got := l.Text()
		want = bytes.TrimRight(want, "\r")
		if !bytes.HasPrefix(want, []byte(got)) || len(want)-len(got) > 3 || len(want) < lastLineBytes && len(got) != len(want) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

// outletPipe is a pipe with an outlet at its end.
func outletPipe(t *testing.T, pipe bool) (*Reader, *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	o, w := NewReader(os.NewFile(uintptr(fds[0]), "pipe"), pipe), os.NewFile(uintptr(fds[1]), "pipe")
	t.Cleanup(func() {
		o.Close()
		w.Close()
	})
	return o, w
}

// hurry makes all that comes count as come within floodTime, however slow the machine is.
func hurry(o *Reader) { o.since = time.Now().Add(time.Hour) }

// TestOutletFlood reads a flood, what comes in a while behind it, and another
// flood, to the end.
func TestOutletFlood(t *testing.T) {
	for name, pipe := range map[string]bool{"pipe": true, "terminal": false} {
		t.Run(name, func(t *testing.T) {
			o, w := outletPipe(t, pipe)
			hurry(o)
			want := make([]byte, 4*floodBytes)
			for i := range want {
				want[i] = byte(i * 31 >> 3)
			}
			calm := make(chan struct{})
			go func() {
				defer w.Close()
				half := len(want) / 2
				for _, part := range [][]byte{want[:half], want[half : half+5], want[half+5:]} {
					for len(part) > 0 {
						n, err := w.Write(part[:min(8<<10, len(part))])
						if err != nil {
							t.Error(err)
							return
						}
						part = part[n:]
					}
					<-calm
				}
			}()
			var got []byte
			floods, in := 0, false
			buf := make([]byte, BlockBytes)
			for {
				if now := o.f == nil; now != in {
					if in = now; in {
						floods++
					}
				}
				n, err := o.Read(buf)
				got = append(got, buf[:n]...)
				if n > 0 && (len(got) == len(want)/2 || len(got) == len(want)/2+5 || len(got) == len(want)) {
					calm <- struct{}{}
				}
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes came, not the %d that were written", len(got), len(want))
			}
			if flooded := floods > 0; flooded != pipe {
				t.Errorf("%d floods were seen", floods)
			}
		})
	}
}

// TestOutletDeadline: a deadline that is set in a flood holds when that is over.
func TestOutletDeadline(t *testing.T) {
	o, w := outletPipe(t, true)
	hurry(o)
	buf := make([]byte, BlockBytes)
	for o.f != nil {
		if _, err := w.Write(make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := o.Read(buf)
		if os.IsTimeout(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := o.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if n, err := o.Read(buf); n != 4 || err != nil {
		t.Errorf("behind the deadline %d bytes came, %v", n, err)
	}
}

// checkStream checks stream and offset of each byte of a chunk.
func checkStream(t *testing.T, c wire.Chunk, n int, which, ends []int) {
	t.Helper()
	if c.Gap > 0 {
		return
	}
	var offs [2]int64
	begin := 0
	for i, end := range ends {
		s := which[i]
		if from, to := max(int64(begin), c.Position), min(int64(end), c.Position+int64(n)); from < to {
			if StreamNames[s] != c.Stream {
				t.Fatalf("bytes of %s in a chunk of %s", StreamNames[s], c.Stream)
			}
			if off := offs[s] + from - int64(begin); from == c.Position && off != c.Offset {
				t.Fatalf("offset %d, want %d", c.Offset, off)
			}
		}
		offs[s] += int64(end - begin)
		begin = end
	}
}

// held is how many bytes are kept.
func (l *Log) held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - l.start
}

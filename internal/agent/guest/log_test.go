//go:build linux

package guest

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
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
		b := &budget{max: 1 << 40}
		l := newOutlog(limit, false, b)
		var all []byte    // both streams
		var which []int   // stream of each byte, by run
		var ends []int    // where each run of which ends
		var offs [2]int64 // of the streams
		block := make([]byte, blockBytes)
		now := time.Unix(0, 0)
		at := make([]int64, 3) // three followers
		var seen [3]int64      // bytes and gaps that each was given
		for range 300 {
			stream, n := rnd.IntN(2), 1+rnd.IntN(3000)
			now = now.Add(time.Duration(rnd.IntN(60)) * time.Millisecond)
			if rnd.IntN(8) == 0 {
				n = blockBytes/2 + 1 + rnd.IntN(blockBytes/2)
			}
			data := block[:n]
			for i := range data {
				data[i] = byte(rnd.Uint32())
			}
			all, which, ends = append(all, data...), append(which, stream), append(ends, len(all)+n)
			offs[stream] += int64(n)
			if n > blockBytes/2 {
				block = l.give(stream, block, n, now)
			} else {
				l.add(stream, data, now)
			}
			if end, o := l.written(); end != int64(len(all)) || o != offs {
				t.Fatalf("seed %d: written %d %v", seed, end, o)
			}
			if l.held() != min(limit, int64(len(all))) || b.used.Load() != l.held() {
				t.Fatalf("seed %d: %d held, %d counted, of %d", seed, l.held(), b.used.Load(), limit)
			}
			f := rnd.IntN(4)
			if f == 3 {
				continue
			}
			buf, next := l.frames(make([]byte, 0, 100+rnd.IntN(batchBytes)), at[f], int64(len(all)))
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
		l.forget()
		if b.used.Load() != 0 {
			t.Fatalf("seed %d: %d counted after all was forgotten", seed, b.used.Load())
		}
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
			if streamNames[s] != c.Stream {
				t.Fatalf("bytes of %s in a chunk of %s", streamNames[s], c.Stream)
			}
			if off := offs[s] + from - int64(begin); from == c.Position && off != c.Offset {
				t.Fatalf("offset %d, want %d", c.Offset, off)
			}
		}
		offs[s] += int64(end - begin)
		begin = end
	}
}

func TestBudget(t *testing.T) {
	in := boot(t, withBudget(256<<10))
	for range 6 {
		in.run(t, "head -c 100000 /dev/zero") // an exec's
	}
	p := managedShell("head -c 300000 /dev/zero; sleep 100")
	in.must(t, p)
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 300_000 })
	held := map[string]int{}
	if err := in.Logs(t.Context(), api.LogOptions{}, func(e api.LogEntry) error {
		held[e.ExecID] += len(e.Data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, n := range held {
		total += n
	}
	if total > 256<<10+blockBytes || held[p.ExecID] < floorBytes {
		t.Fatalf("%d bytes are held, %d of the one that runs", total, held[p.ExecID])
	}
	if _, errs := output(t, in.Client, managedDone(t, in), 0); errs != "" {
		t.Fatal(errs)
	}
}

// managedDone is a process that has ended.
func managedDone(t *testing.T, in *inside) string {
	p := managedShell("echo done")
	in.must(t, p)
	until(t, in.Client, p.ExecID, ended)
	return p.ExecID
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		began := time.Now()
		go func() {
			time.Sleep(30 * time.Second)
			c.hold(true)
			c.hold(true)
			time.Sleep(time.Hour)
			c.hold(false)
		}()
		if !c.wait(time.Minute, nil) || time.Since(began) != time.Hour+time.Minute {
			t.Fatalf("waited for %v", time.Since(began))
		}
		c.hold(true)
		late := c.timer(time.Minute) // made while held
		defer late.stop()
		time.Sleep(time.Hour)
		c.hold(false)
		began = time.Now()
		<-late.C
		if time.Since(began) != time.Minute {
			t.Fatalf("waited for %v", time.Since(began))
		}
		quit := make(chan struct{})
		close(quit)
		if c.wait(time.Minute, quit) {
			t.Fatal("did not quit")
		}
		if len(c.timers) != 0 {
			t.Fatalf("%d timers are left", len(c.timers))
		}
	})
}

func FuzzLastLine(f *testing.F) {
	f.Add([]byte("one\ntwo\n\n  \n"), 3)
	f.Add([]byte("é\nlong "+strings.Repeat("é", 200)), 7)
	f.Add([]byte("a\rb\r\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step <= 0 || len(in) > 10_000 {
			return
		}
		var l lastLine
		for rest := in; len(rest) > 0; {
			n := min(step, len(rest))
			l.add(rest[:n])
			rest = rest[n:]
		}
		// The last line whose first bytes are not blank, and those bytes of it.
		want := []byte(nil)
		for line := range bytes.SplitSeq(in, []byte("\n")) {
			if line = cut(line); len(bytes.TrimSpace(line)) > 0 {
				want = line
			}
		}
		got := l.text()
		want = bytes.TrimRight(want, "\r")
		if !bytes.HasPrefix(want, []byte(got)) || len(want)-len(got) > 3 || len(want) < lastLineBytes && len(got) != len(want) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func FuzzMatcher(f *testing.F) {
	f.Add([]byte("starting\r\nlistening on 80\n"), 4)
	f.Add([]byte("\n\nx\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step <= 0 || len(in) > 10_000 {
			return
		}
		re := regexp.MustCompile(`^(listening on \d+|x)$`)
		m := &matcher{re: re, timer: time.NewTimer(time.Hour)}
		m.timer.Stop()
		for rest := in; len(rest) > 0; {
			n := min(step, len(rest))
			m.look(0, rest[:n])
			rest = rest[n:]
		}
		m.timer.Stop()
		want := false
		lines := bytes.Split(in, []byte("\n"))
		for _, line := range lines[:len(lines)-1] {
			want = want || re.Match(bytes.TrimSuffix(line, []byte("\r")))
		}
		if m.seen != want {
			t.Fatalf("seen is %v", m.seen)
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n"))
	f.Add([]byte("HTTP/1.0 404\n"))
	f.Add([]byte("HTTP/1."))
	f.Fuzz(func(t *testing.T, line []byte) {
		if n, ok := parseStatus(line); ok && (n < 0 || n > 999) {
			t.Fatal(n)
		}
	})
}

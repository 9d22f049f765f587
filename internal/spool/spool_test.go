package spool_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

func TestAppendRefusesWhatDoesNotFollow(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir()})
	w := newWriter(t, l)
	w.out("0123456789")
	w.err("abc")
	data := []byte("x")
	for name, r := range map[string]spool.Record{
		"position before the end":     {Stream: api.Stdout, Position: 12, Offset: 10, Data: data},
		"negative position":           {Stream: api.Stdout, Position: -1, Data: data},
		"offset before the end":       {Stream: api.Stdout, Position: 13, Offset: 9, Data: data},
		"offset of the other stream":  {Stream: api.Stdout, Position: 13, Offset: 11, Data: data},
		"offset beyond the position":  {Stream: api.Stdout, Position: 13, Offset: 14, Data: data},
		"negative offset":             {Stream: api.Stderr, Position: 13, Offset: -3, Data: data},
		"position that overflows":     {Stream: api.Stdout, Position: math.MaxInt64, Offset: 10, Data: data},
		"gap before the end":          {Position: 12, Gap: 3},
		"gap that contradicts offset": {Stream: api.Stderr, Position: 20, Offset: 11, Gap: 7},
	} {
		if err := l.Append(r); !errors.Is(err, spool.ErrOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, r := range map[string]spool.Record{
		"input":     {Stream: api.Stdin, Position: 13, Data: data},
		"no stream": {Position: 13, Data: data},
	} {
		if err := l.Append(r); err == nil || errors.Is(err, spool.ErrOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := text(read(t, l.Reader(spool.ReadOptions{}))); got != "0123456789abc" || l.End() != 13 {
		t.Errorf("%q, end %d", got, l.End())
	}
}

func TestAppendCopies(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir()})
	r := newWriter(t, l).next(api.Stdout, "hello")
	must(t, l.Append(r))
	copy(r.Data, "XXXXX")
	if got := text(read(t, l.Reader(spool.ReadOptions{}))); got != "hello" {
		t.Errorf("%q", got)
	}
}

func TestGaps(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir})
	w := newWriter(t, l)
	w.out("one")
	w.lose(api.Stdout, 4)
	w.lose(api.Stderr, 5)
	must(t, l.Append(spool.Record{Position: w.pos, Gap: 9}))
	if out, err := l.Offsets(); out != 3 || err != 0 {
		t.Errorf("offsets %d %d before anybody knows whose the gap is", out, err)
	}
	w.err("two")
	if out, err := l.Offsets(); out != 7 || err != 8 {
		t.Errorf("offsets %d %d once the next record told", out, err)
	}
	w.lose(api.Stderr, 2)
	w.out("three")
	w.lose(api.Stderr, 6)
	must(t, l.Append(spool.Record{Stream: api.Stderr, Offset: w.off[api.Stderr], Position: w.pos, Gap: 6}))
	must(t, l.Append(spool.Record{Stream: api.Stderr, Offset: w.off[api.Stderr], Position: w.pos, Gap: 6})) // a repeat is no hole
	test := func(l *spool.Log) {
		t.Helper()
		for _, c := range []struct {
			o    spool.ReadOptions
			want string
		}{
			{spool.ReadOptions{}, "one<9>two<2>three<6>"},
			{spool.ReadOptions{Stream: api.Stdout}, "one<4>three"},
			{spool.ReadOptions{Stream: api.Stderr}, "<5>two<2><6>"},
			{spool.ReadOptions{Since: 5}, "<7>two<2>three<6>"},
			{spool.ReadOptions{Stream: api.Stderr, Since: 9}, "<1><6>"},
			{spool.ReadOptions{Since: -3}, "<3>"},
		} {
			if got := text(read(t, l.Reader(c.o))); got != c.want {
				t.Errorf("%+v: %q, want %q", c.o, got, c.want)
			}
		}
		if out, err := l.Offsets(); out != w.off[api.Stdout] || err != w.off[api.Stderr] || l.End() != w.pos {
			t.Errorf("offsets %d %d, end %d", out, err, l.End())
		}
	}
	test(l)
	must(t, l.Close())
	test(open(t, spool.Options{Dir: dir}))
}

// TestGapRecord looks at what a gap says beside its length.
func TestGapRecord(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir()})
	w := newWriter(t, l)
	w.lose(api.Stdout, 10)
	w.err("e")
	both := read(t, l.Reader(spool.ReadOptions{}))
	if g := both[0]; g.Gap != 10 || g.Position != 10 || g.Stream != api.Stderr || g.Offset != 0 || g.Data != nil {
		t.Errorf("gap of both: %+v", g)
	}
	one := read(t, l.Reader(spool.ReadOptions{Stream: api.Stdout}))
	if g := one[0]; len(one) != 1 || g.Gap != 10 || g.Position != 10 || g.Stream != api.Stdout || g.Offset != 10 {
		t.Errorf("gap of one: %+v", one)
	}
}

func TestReadOptions(t *testing.T) {
	for name, o := range map[string]spool.Options{
		"memory": {}, "reopened": {}, "finished": {},
	} {
		t.Run(name, func(t *testing.T) {
			o.Dir = t.TempDir()
			l := open(t, o)
			w := newWriter(t, l)
			start := w.now
			for _, r := range []struct {
				s    api.Stream
				data string
			}{
				{api.Stdout, "o1\n"}, {api.Stderr, "e1\ne2\n"}, {api.Stdout, "o2\no3"}, {api.Stderr, "e3\n"}, {api.Stdout, " o3\no4"},
			} {
				w.write(r.s, r.data)
				w.now = w.now.Add(time.Minute)
			}
			switch name {
			case "reopened":
				must(t, l.Close())
				l = open(t, o)
			case "finished":
				must(t, l.Finish("exited"))
			}
			for _, c := range []struct {
				o    spool.ReadOptions
				want string
			}{
				{spool.ReadOptions{Since: 4}, "1\ne2\no2\no3e3\n o3\no4"},
				{spool.ReadOptions{Since: -4}, "3\no4"},
				{spool.ReadOptions{Since: -100}, "o1\ne1\ne2\no2\no3e3\n o3\no4"},
				{spool.ReadOptions{Since: 23}, ""},
				{spool.ReadOptions{Since: 1000}, ""},
				{spool.ReadOptions{Stream: api.Stdout}, "o1\no2\no3 o3\no4"},
				{spool.ReadOptions{Stream: api.Stderr, Since: 4}, "2\ne3\n"},
				{spool.ReadOptions{Stream: api.Stderr, Since: -3}, "e3\n"},
				{spool.ReadOptions{Stream: api.Stdout, Since: -5}, "o3\no4"},
				{spool.ReadOptions{SinceTime: start.Add(2 * time.Minute)}, "o2\no3e3\n o3\no4"},
				{spool.ReadOptions{SinceTime: start.Add(2*time.Minute + 1)}, "e3\n o3\no4"},
				{spool.ReadOptions{SinceTime: start.Add(-time.Hour)}, "o1\ne1\ne2\no2\no3e3\n o3\no4"},
				{spool.ReadOptions{SinceTime: start.Add(time.Hour)}, ""},
				{spool.ReadOptions{SinceTime: time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)}, ""},
				{spool.ReadOptions{Stream: api.Stdout, SinceTime: start.Add(time.Minute)}, "o2\no3 o3\no4"},
				{spool.ReadOptions{TailLines: 1}, "o4"},
				{spool.ReadOptions{TailLines: 2}, " o3\no4"},
				{spool.ReadOptions{TailLines: 3}, "o3e3\n o3\no4"},
				{spool.ReadOptions{TailLines: 100}, "o1\ne1\ne2\no2\no3e3\n o3\no4"},
				{spool.ReadOptions{Stream: api.Stdout, TailLines: 2}, "o3 o3\no4"},
				{spool.ReadOptions{Stream: api.Stderr, TailLines: 2}, "e2\ne3\n"},
				{spool.ReadOptions{TailLines: 3, Since: 17}, " o3\no4"},
				{spool.ReadOptions{TailLines: 1, Since: 3}, "o4"},
				{spool.ReadOptions{TailLines: 2, SinceTime: start}, " o3\no4"},
				{spool.ReadOptions{TailLines: 4, SinceTime: start.Add(4 * time.Minute)}, " o3\no4"},
			} {
				if got := text(read(t, l.Reader(c.o))); got != c.want {
					t.Errorf("%+v: %q, want %q", c.o, got, c.want)
				}
			}
		})
	}
	l := open(t, spool.Options{Dir: t.TempDir()})
	for _, o := range []spool.ReadOptions{{Stream: api.Stdin}, {TailLines: -1}} {
		if _, err := l.Reader(o).Next(t.Context(), true); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestTailLinesOfALongLog counts lines over segments, most of them gone.
func TestTailLinesOfALongLog(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir, MaxBytes: 1 << 20, TailBytes: 4 << 10})
	w := newWriter(t, l)
	line := strings.Repeat("x", 99) + "\n"
	for range 3000 {
		w.out(strings.Repeat(line, 7))
		w.now = w.now.Add(time.Second)
	}
	test := func(l *spool.Log) {
		t.Helper()
		for _, n := range []int{1, 10, 1000, 5000} {
			if got := text(read(t, l.Reader(spool.ReadOptions{TailLines: n}))); got != strings.Repeat(line, n) {
				t.Errorf("%d lines: %d bytes", n, len(got))
			}
		}
		all := read(t, l.Reader(spool.ReadOptions{TailLines: 100_000}))
		if all[0].Gap == 0 || all[0].Gap != all[0].Position {
			t.Errorf("more lines than are kept begin with %+v", all[0])
		}
		recent := read(t, l.Reader(spool.ReadOptions{SinceTime: w.now.Add(-10 * time.Second)}))
		if got := text(recent); got != strings.Repeat(line, 70) {
			t.Errorf("ten seconds: %d bytes", len(got))
		}
	}
	test(l)
	must(t, l.Close())
	test(open(t, spool.Options{Dir: dir}))
}

// TestJoin reads many small records in a few calls, from memory and from disk,
// and leaves apart what is apart in time.
func TestJoin(t *testing.T) {
	for name, tail := range map[string]int{"memory": 1 << 20, "disk": 1} {
		t.Run(name, func(t *testing.T) {
			l := open(t, spool.Options{Dir: t.TempDir(), TailBytes: tail})
			w := newWriter(t, l)
			for range 20_000 {
				w.out("0123456789")
			}
			w.now = w.now.Add(time.Second)
			w.out("later")
			recs := read(t, l.Reader(spool.ReadOptions{}))
			if got := text(recs); got != strings.Repeat("0123456789", 20_000)+"later" {
				t.Errorf("%d bytes", len(got))
			}
			if len(recs) > 100 {
				t.Errorf("%d records for 200 kB of small ones", len(recs))
			}
			last := recs[len(recs)-1]
			if string(last.Data) != "later" || !last.Time.Equal(w.now) {
				t.Errorf("the last record is %q at %s", last.Data, last.Time)
			}
		})
	}
}

func TestLargeRecord(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir})
	line := bytes.Repeat([]byte("x"), 1<<20)
	w := newWriter(t, l)
	w.out(string(line))
	test := func(l *spool.Log) {
		t.Helper()
		recs := read(t, l.Reader(spool.ReadOptions{}))
		if text(recs) != string(line) {
			t.Error("the line is not what was written")
		}
		for _, r := range recs {
			if len(r.Data) > 256<<10 {
				t.Errorf("a record of %d bytes", len(r.Data))
			}
		}
	}
	test(l)
	must(t, l.Close())
	test(open(t, spool.Options{Dir: dir}))
}

func TestFinish(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir})
	newWriter(t, l).out("bye")
	if reason, ok := l.Finished(); ok || reason != "" {
		t.Errorf("finished before the end: %q", reason)
	}
	reason := "the sandbox was stopped"
	must(t, l.Finish(reason))
	must(t, l.Finish("again"))
	if err := l.Append(spool.Record{Stream: api.Stdout, Position: 3, Offset: 3, Data: []byte("x")}); !errors.Is(err, spool.ErrFinished) {
		t.Errorf("Append: %v", err)
	}
	for range 2 {
		if got, ok := l.Finished(); !ok || got != reason {
			t.Errorf("Finished: %q %v", got, ok)
		}
		r := l.Reader(spool.ReadOptions{})
		if rec, err := r.Next(t.Context(), true); err != nil || string(rec.Data) != "bye" {
			t.Errorf("%q %v", rec.Data, err)
		}
		for range 2 {
			if _, err := r.Next(t.Context(), true); !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
		}
		must(t, l.Close())
		if _, err := r.Next(t.Context(), true); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		l = open(t, spool.Options{Dir: dir})
	}
}

func TestFinishWithoutOutputAndLongReason(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir})
	must(t, l.Finish(strings.Repeat("ü", 2000)))
	must(t, l.Close())
	l = open(t, spool.Options{Dir: dir})
	if reason, ok := l.Finished(); !ok || reason != strings.Repeat("ü", 512) {
		t.Errorf("%d bytes, %v", len(reason), ok)
	}
	if err := l.Finish("again"); err != nil {
		t.Error(err)
	}
}

// TestWaiting proves with a clock of its own that a reader waits exactly until
// something comes, the log is finished or closed, or its context ends.
func TestWaiting(t *testing.T) {
	type end func(*spool.Log, context.CancelCauseFunc)
	why := errors.New("the caller left")
	for name, c := range map[string]struct {
		end  end
		want error
	}{
		"append": {func(l *spool.Log, _ context.CancelCauseFunc) {
			_ = l.Append(spool.Record{Stream: api.Stdout, Data: []byte("x")})
		}, nil},
		"finish": {func(l *spool.Log, _ context.CancelCauseFunc) { _ = l.Finish("") }, io.EOF},
		"close":  {func(l *spool.Log, _ context.CancelCauseFunc) { _ = l.Close() }, fs.ErrClosed},
		"cancel": {func(_ *spool.Log, cancel context.CancelCauseFunc) { cancel(why) }, why},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, spool.Options{Dir: t.TempDir()})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				const readers = 20
				done := make(chan time.Duration, readers)
				start := time.Now()
				for range readers {
					go func() {
						if _, err := l.Reader(spool.ReadOptions{}).Next(ctx, true); !errors.Is(err, c.want) {
							t.Errorf("Next: %v, want %v", err, c.want)
						}
						done <- time.Since(start)
					}()
				}
				time.Sleep(time.Hour)
				if len(done) > 0 {
					t.Fatal("a reader did not wait")
				}
				c.end(l, cancel)
				synctest.Wait()
				for range readers {
					if took := <-done; took != time.Hour {
						t.Errorf("a reader waited %s", took)
					}
				}
			})
		})
	}
}

func TestNoMore(t *testing.T) {
	l := open(t, spool.Options{Dir: t.TempDir()})
	r := l.Reader(spool.ReadOptions{})
	if _, err := r.Next(t.Context(), false); !errors.Is(err, spool.ErrNoMore) {
		t.Errorf("empty: %v", err)
	}
	newWriter(t, l).out("x")
	if rec, err := r.Next(t.Context(), false); err != nil || string(rec.Data) != "x" {
		t.Errorf("%q %v", rec.Data, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Next(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, o := range map[string]spool.Options{
		"no directory": {Dir: t.TempDir() + "/none"},
		"negative":     {Dir: t.TempDir(), MaxBytes: -1},
		"tail":         {Dir: t.TempDir(), TailBytes: -1},
	} {
		if l, err := spool.Open(o); err == nil {
			t.Errorf("%s: opened", name)
			_ = l.Close()
		}
	}
}

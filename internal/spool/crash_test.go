package spool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

// small writes a log of one segment and returns what is in its file.
func small(t testing.TB, finish bool) (*model, []byte) {
	t.Helper()
	dir, m := t.TempDir(), newModel()
	l := open(t, spool.Options{Dir: dir})
	w := newWriter(t, l)
	for i, s := range []string{"one\n", "two", "three\n\n", "4", strings.Repeat("five", 30)} {
		stream := []api.Stream{api.Stdout, api.Stderr}[i%2]
		m.add(stream, []byte(s))
		w.write(stream, s)
	}
	if finish {
		must(t, l.Finish("exited"))
	}
	must(t, l.Close())
	data, err := os.ReadFile(lastSegment(t, dir))
	must(t, err)
	return m, data
}

// place makes a directory with one segment in it.
func place(t testing.TB, name string, data []byte) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	return dir
}

const firstSegment = "0000000000000001.spool"

// TestTruncated cuts a log off at every byte: what is left is a beginning of
// what was, and goes on.
func TestTruncated(t *testing.T) {
	m, data := small(t, true)
	seen := map[int64]bool{}
	for n := range len(data) {
		dir := place(t, firstSegment, data[:n])
		l := open(t, spool.Options{Dir: dir})
		end := l.End()
		seen[end] = true
		part := &model{cells: m.cells[:end], off: m.off}
		part.checkBoth(t, read(t, l.Reader(spool.ReadOptions{})), 0, 0)
		if _, ok := l.Finished(); ok {
			t.Fatalf("cut at %d of %d: finished", n, len(data))
		}
		out, _ := l.Offsets()
		must(t, l.Append(spool.Record{Stream: api.Stdout, Position: end, Offset: out, Data: []byte("more")}))
		must(t, l.Close())
		l = open(t, spool.Options{Dir: dir})
		if got, want := text(read(t, l.Reader(spool.ReadOptions{}))), textOf(part)+"more"; got != want {
			t.Fatalf("cut at %d: %q, want %q", n, got, want)
		}
		must(t, l.Close())
	}
	if want := []int64{0, 4, 7, 14, 15, 135}; len(seen) != len(want) {
		t.Errorf("ends %v, want %v", seen, want)
	}
}

func textOf(m *model) string {
	var b []byte
	for _, c := range m.cells {
		b = append(b, c.b)
	}
	return string(b)
}

// TestDamaged changes every byte of a log, before it is opened and while it is
// open: never is a wrong byte read, and the gaps are as long as what is missing.
func TestDamaged(t *testing.T) {
	m, data := small(t, false)
	for i := range data {
		bad := slices.Clone(data)
		bad[i] ^= 0x5a
		dir := place(t, firstSegment, bad)
		l := open(t, spool.Options{Dir: dir})
		end := l.End()
		part := &model{cells: m.cells[:end], off: m.off}
		// From all before the damaged record on nothing must be kept.
		part.checkBoth(t, read(t, l.Reader(spool.ReadOptions{})), 0, end)
		must(t, l.Close())

		dir = place(t, firstSegment, data)
		l = open(t, spool.Options{Dir: dir})
		must(t, os.WriteFile(filepath.Join(dir, firstSegment), bad, 0o600))
		recs := read(t, l.Reader(spool.ReadOptions{}))
		m.checkBoth(t, recs, 0, m.end())
		if len(recs) < 5 && i >= 80 {
			t.Fatalf("byte %d: %d records, want 4 and a gap", i, len(recs))
		}
		for _, s := range []api.Stream{api.Stdout, api.Stderr} {
			m.checkOne(t, read(t, l.Reader(spool.ReadOptions{Stream: s})), s, 0)
		}
		must(t, l.Close())
	}
}

// TestDamagedEnd damages what a power cut does: the content of the last record, which has
// its length. The record is cut off, and the log goes on in its place.
func TestDamagedEnd(t *testing.T) {
	m, data := small(t, false)
	for back := range 120 { // the last record is as long
		bad := slices.Clone(data)
		bad[len(bad)-1-back] = 0
		dir := place(t, firstSegment, bad)
		l := open(t, spool.Options{Dir: dir})
		if end := l.End(); end != 15 {
			t.Fatalf("byte %d from the end: the log ends at %d, want 15", back, end)
		}
		out, _ := l.Offsets()
		must(t, l.Append(spool.Record{Stream: api.Stdout, Position: 15, Offset: out, Data: []byte("more")}))
		must(t, l.Close())
		l = open(t, spool.Options{Dir: dir})
		part := &model{cells: m.cells[:15], off: m.off}
		if got, want := text(read(t, l.Reader(spool.ReadOptions{}))), textOf(part)+"more"; got != want {
			t.Fatalf("byte %d from the end: %q, want %q", back, got, want)
		}
		must(t, l.Close())
	}
	_, data = small(t, true)
	data[len(data)-1] ^= 1 // of the reason
	l := open(t, spool.Options{Dir: place(t, firstSegment, data)})
	if reason, ok := l.Finished(); ok {
		t.Errorf("it has ended for the reason %q", reason)
	}
}

// TestForgedRecord has a program print what the log writes: even with a damaged
// record before it, it is not taken for one.
func TestForgedRecord(t *testing.T) {
	_, data := small(t, false)
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir})
	w := newWriter(t, l)
	w.out("begin")
	w.out(string(data) + string(data[80:]))
	w.out("end")
	must(t, l.Close())
	path := lastSegment(t, dir)
	bad, err := os.ReadFile(path)
	must(t, err)
	bad[80+56+5+20] ^= 1 // the length of the second record
	must(t, os.WriteFile(path, bad, 0o600))
	l = open(t, spool.Options{Dir: dir})
	recs := read(t, l.Reader(spool.ReadOptions{}))
	if len(recs) != 3 || text(recs[:1]) != "begin" || recs[1].Gap != w.pos-8 || text(recs[2:]) != "end" {
		t.Errorf("%q", text(recs))
	}
}

// TestLostSegments removes and damages whole files.
func TestLostSegments(t *testing.T) {
	o := spool.Options{Dir: t.TempDir(), MaxBytes: 64 << 10}
	l, m := open(t, o), newModel()
	w := newWriter(t, l)
	for i := range 40 {
		s := strings.Repeat(string(rune('a'+i%26)), 1000)
		m.add(api.Stdout, []byte(s))
		w.out(s)
	}
	must(t, l.Close())
	names, err := filepath.Glob(filepath.Join(o.Dir, "*.spool"))
	must(t, err)
	must(t, os.Remove(names[1]))
	must(t, os.Truncate(names[3], 40))
	must(t, os.WriteFile(filepath.Join(o.Dir, "notes.txt"), []byte("mine"), 0o600))
	must(t, os.Symlink("/etc/passwd", filepath.Join(o.Dir, "00000000000000ff.spool")))
	must(t, os.Mkdir(filepath.Join(o.Dir, "00000000000000fe.spool"), 0o700))

	l = open(t, o)
	recs := read(t, l.Reader(spool.ReadOptions{}))
	m.checkBoth(t, recs, 0, m.end())
	gaps := 0
	for _, r := range recs {
		if r.Gap > 0 {
			gaps++
		}
	}
	if gaps != 2 {
		t.Errorf("%d gaps, want 2: %v", gaps, len(recs))
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "notes.txt")); err != nil {
		t.Errorf("a file that is not the log's: %v", err)
	}
	// A file that goes away while the log is open is a gap too.
	r := l.Reader(spool.ReadOptions{})
	must(t, os.Remove(names[2]))
	m.checkBoth(t, read(t, r), 0, m.end())
	w.log = l
	w.out("on")
}

// TestFallingBehind has a reader that waits while the log goes round: it
// is told exactly how much it missed, and pins neither disk nor memory.
func TestFallingBehind(t *testing.T) {
	o := spool.Options{Dir: t.TempDir(), MaxBytes: 1 << 20}
	l := open(t, o)
	w := newWriter(t, l)
	w.out("first")
	r := l.Reader(spool.ReadOptions{})
	if rec, err := r.Next(t.Context(), true); err != nil || string(rec.Data) != "first" {
		t.Fatalf("%q %v", rec.Data, err)
	}
	block := strings.Repeat("0123456789abcde\n", 4<<10)
	w.out(block)
	rec, err := r.Next(t.Context(), true)
	must(t, err)
	has := rec.Position + int64(len(rec.Data))
	for range 400 { // 25 MiB
		w.out(block)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 400 {
		w.out(block)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if used := diskUse(t, o.Dir); used > o.MaxBytes {
		t.Errorf("%d bytes on disk", used)
	}
	gap, err := r.Next(t.Context(), true)
	if err != nil || gap.Gap == 0 || gap.Gap != gap.Position-has {
		t.Fatalf("%+v %v", gap, err)
	}
	rest := read(t, r)
	var n int64
	for _, rec := range rest {
		n += int64(len(rec.Data))
	}
	if n != w.pos-gap.Position || n < o.MaxBytes/2 {
		t.Errorf("%d bytes after the gap, want %d", n, w.pos-gap.Position)
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, fd := range open {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, o.Dir) && strings.HasSuffix(to, "(deleted)") {
				t.Errorf("a deleted file is held open: %s", to)
			}
		}
	}
}

// TestDescriptors counts what a log holds open.
func TestDescriptors(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("needs /proc: it counts descriptors")
	}
	o := spool.Options{Dir: t.TempDir()}
	count := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, o.Dir) {
				n++
			}
		}
		return n
	}
	l := open(t, o)
	newWriter(t, l).out("x")
	if n := count(); n != 2 {
		t.Errorf("a live log holds %d", n)
	}
	must(t, l.Finish("exited"))
	if n := count(); n != 0 {
		t.Errorf("a finished log holds %d", n)
	}
	if got := text(read(t, l.Reader(spool.ReadOptions{}))); got != "x" {
		t.Errorf("%q", got)
	}
	must(t, l.Close())
	l = open(t, o)
	if n := count(); n != 0 {
		t.Errorf("a finished log that was opened holds %d", n)
	}
	if got := text(read(t, l.Reader(spool.ReadOptions{}))); got != "x" {
		t.Errorf("%q", got)
	}
}

// FuzzOpen opens foreign bytes as a log of one segment: nothing panics, memory
// is bounded, and a reader comes to an end that is where the log says.
func FuzzOpen(f *testing.F) {
	_, data := small(f, true)
	_, open := small(f, false)
	f.Add(data)
	f.Add(open)
	f.Add(open[:len(open)-3])
	f.Add(append(slices.Clone(open), open[80:]...))
	f.Add(data[:80])
	f.Add([]byte{})
	f.Add(make([]byte, 4096))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, fixed := range [][]byte{b, mended(b)} {
			l, err := spool.Open(spool.Options{Dir: place(t, firstSegment, fixed)})
			if err != nil {
				t.Fatal(err)
			}
			at := int64(0)
			r := l.Reader(spool.ReadOptions{})
			for {
				rec, err := r.Next(context.Background(), false)
				if errors.Is(err, io.EOF) || errors.Is(err, spool.ErrNoMore) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if at += rec.Gap; rec.Position != at || len(rec.Data)+int(min(rec.Gap, 1)) == 0 {
					t.Fatalf("%+v at %d", rec, at)
				}
				at += int64(len(rec.Data))
			}
			if at != l.End() {
				t.Fatalf("read to %d of %d", at, l.End())
			}
			for _, o := range []spool.ReadOptions{{Stream: api.Stdout, TailLines: 2}, {Stream: api.Stderr, Since: -10}} {
				read(t, l.Reader(o))
			}
			out, _ := l.Offsets()
			if _, done := l.Finished(); !done && l.End() < 1<<61 && out < 1<<61 {
				// The streams may be unknown after a gap; a hole is always allowed.
				must(t, l.Append(spool.Record{Position: l.End() + 1, Gap: 1}))
			}
			must(t, l.Close())
		}
	})
}

func mended(b []byte) []byte { return spool.Mend(slices.Clone(b)) }

// TestDamagedFinishedLog damages one file of a finished log: what is missing is a
// gap, also where it is the end of the log, for readers of both streams and of one.
func TestDamagedFinishedLog(t *testing.T) {
	type damage struct {
		name string
		do   func(path string, size int64) error
	}
	damages := []damage{
		{"empty", func(path string, _ int64) error { return os.Truncate(path, 0) }},
		{"removed", func(path string, _ int64) error { return os.Remove(path) }},
		{"halved", func(path string, size int64) error { return os.Truncate(path, size/2) }},
	}
	for _, records := range []int{3, 40} {
		for _, which := range []string{"first", "middle", "last", "all"} {
			for _, d := range damages {
				t.Run(fmt.Sprintf("%d records/%s/%s", records, which, d.name), func(t *testing.T) {
					o := spool.Options{Dir: t.TempDir(), MaxBytes: 128 << 10}
					l, m := open(t, o), newModel()
					w := newWriter(t, l)
					for i := range records {
						s, stream := strings.Repeat(string(rune('a'+i%26)), 999)+"\n", []api.Stream{api.Stdout, api.Stderr}[i%2]
						m.add(stream, []byte(s))
						w.write(stream, s)
					}
					must(t, l.Finish("exited"))
					o.Ends = l.Ends()
					must(t, l.Close())
					names, err := filepath.Glob(filepath.Join(o.Dir, "*.spool"))
					must(t, err)
					if several := records > 3; several != (len(names) > 2) {
						t.Fatalf("%d segments", len(names))
					}
					chosen := map[string][]string{
						"first": names[:1], "middle": names[len(names)/2 : len(names)/2+1], "last": names[len(names)-1:], "all": names,
					}[which]
					for _, name := range chosen {
						info, err := os.Stat(name)
						must(t, err)
						must(t, d.do(name, info.Size()))
					}
					check := func(l *spool.Log) {
						t.Helper()
						recs := read(t, l.Reader(spool.ReadOptions{}))
						m.checkBoth(t, recs, 0, m.end())
						if !slices.ContainsFunc(recs, func(r spool.Record) bool { return r.Gap > 0 }) {
							t.Error("no gap")
						}
						for _, s := range []api.Stream{api.Stdout, api.Stderr} {
							recs := read(t, l.Reader(spool.ReadOptions{Stream: s}))
							m.checkOne(t, recs, s, 0)
							if n := len(recs); n == 0 || recs[n-1].Offset+int64(len(recs[n-1].Data)) != m.off[s] {
								t.Errorf("the reader of %s does not come to the end", s)
							}
						}
						for name, ro := range map[string]spool.ReadOptions{
							"a time": {SinceTime: w.now.Add(-time.Hour)}, "lines": {TailLines: records},
						} {
							var n int64
							recs := read(t, l.Reader(ro))
							for _, r := range recs {
								n += r.Gap + int64(len(r.Data))
							}
							if len(recs) == 0 || recs[len(recs)-1].Position+int64(len(recs[len(recs)-1].Data)) != m.end() {
								t.Errorf("the reader from %s gets %d of %d bytes", name, n, m.end())
							}
						}
					}
					l = open(t, o)
					check(l)
					must(t, l.Finish("exited"))
					check(l)
					must(t, l.Close())
					// The repaired log keeps its end, and another open does not repeat the gap.
					l = open(t, o)
					check(l)
					if reason, ok := l.Finished(); !ok || reason != "exited" {
						t.Errorf("finished %v: %q", ok, reason)
					}
				})
			}
		}
	}
}

// Ends that contradict the files, or lie behind them, change nothing.
func TestEndsAreNotLess(t *testing.T) {
	m, data := small(t, true)
	for _, ends := range []spool.Ends{{}, {Stdout: 1, Stderr: 1}, {Stdout: 1 << 40}, {Stdout: -1, Stderr: -1}, {Stdout: 1<<63 - 1, Stderr: 1<<63 - 1}} {
		l := open(t, spool.Options{Dir: place(t, firstSegment, data), Ends: ends})
		m.checkBoth(t, read(t, l.Reader(spool.ReadOptions{})), 0, 0)
		must(t, l.Close())
	}
}

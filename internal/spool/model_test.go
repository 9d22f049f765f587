package spool_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

// follower is a reader that the property test reads from now and then.
type follower struct {
	r     *spool.Reader
	s     api.Stream
	since int64
	recs  []spool.Record
}

// TestModel does what may be done in any order and compares every byte.
func TestModel(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 10
	}
	for seed := range uint64(rounds) {
		testModel(t, rand.New(rand.NewPCG(seed, 1)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func testModel(t *testing.T, rnd *rand.Rand) {
	o := spool.Options{Dir: t.TempDir(), MaxBytes: 16<<10 + rnd.Int64N(256<<10), TailBytes: 1 + rnd.IntN(32<<10)}
	l, m := open(t, o), newModel()
	var followers []*follower
	largest := 1 + rnd.IntN(4000)
	for range 400 {
		switch rnd.IntN(20) {
		case 0: // A hole in one of the streams, told or seen in the next record.
			s := pick(rnd)
			m.lose(s, 1+rnd.Int64N(1000))
			if rnd.IntN(2) == 0 {
				must(t, l.Append(spool.Record{Position: m.end(), Gap: 7}))
			} else {
				appendTo(t, l, m, s, []byte("x"))
			}
		case 1: // The daemon ends in order, or not.
			if m.end() != l.End() {
				t.Fatalf("End %d, want %d", l.End(), m.end())
			}
			if rnd.IntN(2) == 0 {
				must(t, l.Close())
			}
			if rnd.IntN(2) == 0 && m.end() > 0 {
				tear(t, o.Dir, rnd)
			}
			// A hole at the very end that was only seen by a reader of positions is on disk.
			l = open(t, o)
			followers = nil
		case 2:
			f := &follower{s: []api.Stream{"", api.Stdout, api.Stderr}[rnd.IntN(3)]}
			f.since = rnd.Int64N(m.end() + 100)
			if f.s != "" {
				f.since = rnd.Int64N(m.off[f.s] + 100)
			}
			f.r = l.Reader(spool.ReadOptions{Stream: f.s, Since: f.since})
			followers = append(followers, f)
		case 3, 4:
			if len(followers) > 0 {
				f := followers[rnd.IntN(len(followers))]
				f.recs = append(f.recs, read(t, f.r)...)
			}
		default:
			appendTo(t, l, m, pick(rnd), bytesOf(rnd, rnd.IntN(largest)))
		}
	}
	appendTo(t, l, m, api.Stdout, []byte("o"))
	appendTo(t, l, m, api.Stderr, []byte("e"))
	check(t, l, m, o, followers)
	must(t, l.Finish("exited"))
	check(t, l, m, o, nil)
	must(t, l.Close())
	l = open(t, o)
	check(t, l, m, o, nil)
	if reason, ok := l.Finished(); !ok || reason != "exited" {
		t.Errorf("finished %q %v", reason, ok)
	}
	if used, bound := diskUse(t, o.Dir), max(o.MaxBytes, 16<<10); used > bound+200 {
		t.Errorf("%d bytes on disk, want at most %d", used, bound)
	}
}

func check(t *testing.T, l *spool.Log, m *model, o spool.Options, followers []*follower) {
	t.Helper()
	kept := m.mustKeep(max(o.MaxBytes, 16<<10))
	m.checkBoth(t, read(t, l.Reader(spool.ReadOptions{})), 0, kept)
	for _, s := range []api.Stream{api.Stdout, api.Stderr} {
		recs := read(t, l.Reader(spool.ReadOptions{Stream: s}))
		m.checkOne(t, recs, s, 0)
		last := recs[len(recs)-1]
		if end := last.Offset + int64(len(last.Data)); end != m.off[s] {
			t.Fatalf("reader of %s ends at %d, want %d", s, end, m.off[s])
		}
	}
	if out, err := l.Offsets(); out != m.off[api.Stdout] || err != m.off[api.Stderr] {
		t.Fatalf("offsets %d %d, want %v", out, err, m.off)
	}
	for _, f := range followers {
		f.recs = append(f.recs, read(t, f.r)...)
		if f.s == "" {
			m.checkBoth(t, f.recs, f.since, kept)
		} else {
			m.checkOne(t, f.recs, f.s, f.since)
		}
	}
}

func pick(rnd *rand.Rand) api.Stream {
	if rnd.IntN(3) == 0 {
		return api.Stderr
	}
	return api.Stdout
}

func appendTo(t *testing.T, l *spool.Log, m *model, s api.Stream, data []byte) {
	t.Helper()
	must(t, l.Append(spool.Record{Stream: s, Position: m.end(), Offset: m.off[s], Time: time.Now(), Data: data}))
	if len(data) > 0 {
		m.add(s, data)
	} else if m.end() > l.End() {
		t.Fatalf("a hole up to %d is not in the log, which ends at %d", m.end(), l.End())
	}
}

// tear leaves at the end what a crash in the middle of a write leaves.
func tear(t *testing.T, dir string, rnd *rand.Rand) {
	t.Helper()
	f, err := os.OpenFile(lastSegment(t, dir), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.Write(bytesOf(rnd, 1+rnd.IntN(300)))
	must(t, err)
	must(t, f.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

//go:build linux

package gvisor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// sentry is what a test plays: a guard, or code that took its place.
type sentry struct {
	t           *testing.T
	pipe, count *os.File
}

func (s sentry) says(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		if _, err := s.pipe.WriteString(line); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s sentry) saw(n uint64) {
	s.t.Helper()
	if _, err := s.count.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0); err != nil {
		s.t.Fatal(err)
	}
}

func note(seq int) string {
	return fmt.Sprintf(`{"seq":%d,"rule":0,"op":"open","path":"YQ==","program":"c2g=","uid":1}`+"\n", seq)
}

// newSentry makes a sentry whose listener ends with what is returned.
func newSentry(t *testing.T, dir string) (sentry, gvisor.Reports) {
	t.Helper()
	pipe, count, r, err := gvisor.MakeReports(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close(); count.Close(); r.Close() })
	return sentry{t, pipe, count}, r
}

// TestRefusalsAreCounted: a refusal without a note is reported as a number, whether it is
// missing between two, at the end, or happened without a listener.
func TestRefusalsAreCounted(t *testing.T) {
	dir := t.TempDir()
	s, r := newSentry(t, dir)
	s.says(note(1), note(5))
	s.saw(9)
	if n := gvisor.UntoldIn(dir); n != 9 {
		t.Errorf("%d untold before anybody listened", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got []engine.PathDenial
	err := r.Listen(ctx, nil, func(f engine.PathDenial) {
		if got = append(got, f); len(got) == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(got) != 2 || got[0].Missed != 0 || got[1].Missed != 3 || got[1].Path != "a" || got[1].Program != "sh" || got[1].UID != 1 {
		t.Fatalf("%v, %+v", err, got)
	}
	if n := gvisor.UntoldIn(dir); n != 4 {
		t.Errorf("%d untold after five", n)
	}
	// The next listener tells nothing twice, and the rest when the sentry has gone.
	s.says(note(5), note(7))
	s.pipe.Close()
	dead := make(chan struct{})
	close(dead)
	got = nil
	if err := r.Listen(t.Context(), dead, func(f engine.PathDenial) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Missed != 1 || got[1].Rule != -1 || got[1].Missed != 2 || gvisor.UntoldIn(dir) != 0 {
		t.Errorf("%+v, %d untold", got, gvisor.UntoldIn(dir))
	}
}

// TestRefusalsOfHostileSentry: what is no note is passed over, a flood is held back,
// and a count that cannot be does no harm.
func TestRefusalsOfHostileSentry(t *testing.T) {
	s, r := newSentry(t, t.TempDir())
	s.says("\n", "null\n", "{\n", strings.Repeat("x", 10_000)+"\n", `{"seq":3,"rule":-5,"path":"YQ=="}`+"\n",
		`{"seq":3,"rule":0,"op":"`+strings.Repeat("o", 100)+`"}`+"\n", note(4), note(2))
	for n := range 400 {
		s.says(note(10 + n))
	}
	s.saw(math.MaxUint64)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const paced = 10 // that have to wait
	n, begun := 0, time.Now()
	err := r.Listen(ctx, nil, func(f engine.PathDenial) {
		if n++; f.Rule != 0 || f.Missed < 0 {
			t.Errorf("%+v", f)
		}
		if n == gvisor.NoteBurst+paced {
			cancel()
		}
	})
	if took := time.Since(begun); !errors.Is(err, context.Canceled) || took < (paced-1)*gvisor.NotePace {
		t.Errorf("%v, %d told in %s", err, n, took)
	}
	// An end is not held up by what is left.
	begun = time.Now()
	s.pipe.Close()
	dead := make(chan struct{})
	close(dead)
	var last engine.PathDenial
	if err := r.Listen(t.Context(), dead, func(f engine.PathDenial) { last = f }); err != nil || last.Rule != -1 || last.Missed <= 0 {
		t.Errorf("%v, %+v", err, last)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("the end took %v", d)
	}
}

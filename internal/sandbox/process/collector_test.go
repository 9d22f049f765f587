package process

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/spool"
)

// The log of a process has each byte once, in its place: what an agent sends again is left
// out, what it lost is a gap, and what contradicts the log is an error.
func TestCollectorTake(t *testing.T) {
	chunk := func(stream api.Stream, position, offset int64, data string) agent.Chunk {
		return agent.Chunk{Stream: stream, Position: position, Offset: offset, Data: []byte(data)}
	}
	const out, stderr = api.Stdout, api.Stderr
	for name, c := range map[string]struct {
		chunks []agent.Chunk
		want   string
		err    error
	}{
		"in order":        {[]agent.Chunk{chunk(out, 0, 0, "one"), chunk(stderr, 3, 0, "two"), chunk(out, 6, 3, "three")}, "0 stdout+0 one, 3 stderr+0 two, 6 stdout+3 three", nil},
		"sent again":      {[]agent.Chunk{chunk(out, 0, 0, "one"), chunk(stderr, 3, 0, "two"), chunk(out, 0, 0, "one"), chunk(stderr, 3, 0, "two")}, "0 stdout+0 one, 3 stderr+0 two", nil},
		"the end is new":  {[]agent.Chunk{chunk(out, 0, 0, "one"), chunk(out, 0, 0, "one two")}, "0 stdout+0 one two", nil},
		"one byte is new": {[]agent.Chunk{chunk(out, 0, 0, "one"), chunk(out, 1, 1, "ne!")}, "0 stdout+0 one!", nil},
		"a gap":           {[]agent.Chunk{chunk(out, 0, 0, "one"), {Position: 10, Gap: 7}, chunk(out, 10, 8, "two")}, "0 stdout+0 one, <7>, 10 stdout+8 two", nil},
		"an old gap":      {[]agent.Chunk{chunk(out, 0, 0, "one"), {Position: 2, Gap: 1}, chunk(out, 3, 3, "two")}, "0 stdout+0 onetwo", nil},
		"a wrong offset":  {[]agent.Chunk{chunk(out, 0, 0, "one"), chunk(out, 3, 1, "two")}, "0 stdout+0 one", spool.ErrOrder},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := spool.Open(spool.Options{Dir: t.TempDir(), MaxBytes: 1 << 20, TailBytes: 4 << 10})
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			in := collector{log: log, warn: func(err error) { t.Error(err) }}
			err = nil
			for _, ch := range c.chunks {
				if err = in.take(ch); err != nil {
					break
				}
			}
			if !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			var got []string
			for r := log.Reader(spool.ReadOptions{}); ; {
				rec, err := r.Next(t.Context(), false)
				if errors.Is(err, spool.ErrNoMore) || errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if rec.Gap > 0 {
					got = append(got, fmt.Sprintf("<%d>", rec.Gap))
					continue
				}
				got = append(got, fmt.Sprintf("%d %s+%d %s", rec.Position, rec.Stream, rec.Offset, rec.Data))
			}
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

package quota

import (
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// quiet is a sandbox that writes nothing.
type quiet struct{ Sandbox }

func (quiet) Bounds() (workspace.Bounds, bool) { return workspace.Bounds{SizeBytes: 1 << 50}, true }

// BenchmarkWatch is one look at a thousand sandboxes that write nothing.
func BenchmarkWatch(b *testing.B) {
	const sandboxes = 1000
	dir := b.TempDir()
	left, err := workspace.SpaceAt(dir)
	if err != nil {
		b.Fatal(err)
	}
	states := make([]State, sandboxes)
	for i := range states {
		states[i].known, states[i].before, states[i].at = true, left, time.Now().Add(time.Hour)
	}
	w := New(Options{Context: b.Context(), Logger: slog.New(slog.DiscardHandler), Dir: dir, Sandboxes: func() iter.Seq2[Sandbox, *State] {
		return func(yield func(Sandbox, *State) bool) {
			for i := range states {
				if !yield(quiet{}, &states[i]) {
					return
				}
			}
		}
	}})
	for b.Loop() {
		w.look()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sandboxes, "ns/sandbox")
}

// BenchmarkSpaceAt is what the filesystem is asked, once for all sandboxes.
func BenchmarkSpaceAt(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := workspace.SpaceAt(dir); err != nil {
			b.Fatal(err)
		}
	}
}

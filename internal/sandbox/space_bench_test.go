package sandbox

import (
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// BenchmarkWatch is one look at a thousand sandboxes that write nothing.
func BenchmarkWatch(b *testing.B) {
	const sandboxes = 1000
	m := &Manager{opts: Options{Dir: b.TempDir()}, log: slog.New(slog.DiscardHandler), byID: map[string]*live{}}
	dir := m.sandboxesDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	left, err := workspace.SpaceAt(dir)
	if err != nil {
		b.Fatal(err)
	}
	for i := range sandboxes {
		id := strconv.Itoa(i)
		m.byID[id] = &live{
			id:    id,
			info:  api.Sandbox{State: api.StateRunning, Workspace: api.Workspace{Enforced: api.HeldByWatch, SizeBytes: 1 << 50}},
			space: space{known: true, before: left, at: time.Now().Add(time.Hour)},
		}
	}
	for b.Loop() {
		m.lookAtSpace()
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

//go:build linux

package native_test

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// BenchmarkFirstOutput compares creates with all that a sandbox has, to the first output
// of a program in it: with an agent that waits and without, and bubblewrap's. They take
// turns, so that whatever else the machine does hits all of them. The end is a subject
// of its own.
func BenchmarkFirstOutput(b *testing.B) {
	needsPool(b)
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		b.Skip("needs bwrap, which is not here")
	}
	images := enginetest.BuildImages(b, b.TempDir())
	cold, ready := newEngine(b, b.TempDir()), newEngine(b, b.TempDir())
	took := map[string][]time.Duration{}
	since := func(what string, began time.Time) { took[what] = append(took[what], time.Since(began)) }
	for b.Loop() {
		fill := enginetest.Plan(b, images)
		fill.Pool.Ceiling = 1
		ready.Fill(fill)
		for _, s := range []struct {
			name string
			e    creator
		}{{"cold", cold}, {"waiting", ready}} {
			p := enginetest.Plan(b, images)
			p.Pool.Ceiling = fill.Pool.Ceiling
			if s.e == creator(cold) {
				p.Pool.Ceiling = 0
			}
			began := time.Now()
			i, err := s.e.Create(b.Context(), p)
			if err != nil {
				b.Fatal(err)
			}
			since(s.name+"-create", began)
			if _, err := enginetest.Exec(b.Context(), i, enginetest.Inside, "hostname"); err != nil {
				b.Fatal(err)
			}
			since(s.name, began)
			began = time.Now()
			if err := i.Close(context.WithoutCancel(b.Context())); err != nil {
				b.Fatal(err)
			}
			since("close", began)
		}
		began := time.Now()
		out, err := exec.Command(bwrap, "--unshare-all", "--die-with-parent", "--tmpfs", "/", "--ro-bind", images.Program, "/inside",
			"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/inside", "hostname").Output()
		if err != nil || !bytes.HasSuffix(out, []byte("\n")) {
			b.Fatalf("%v: %s", err, out)
		}
		since("bwrap", began)
	}
	for what, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[0].Microseconds())/1000, what+"-min-ms")
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, what+"-p50-ms")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, what+"-p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

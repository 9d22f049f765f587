//go:build linux

package sandbox_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
)

// benchFixture is a sandbox on the imaginary machine, for what happens on this
// side of an agent.
func benchFixture(b *testing.B) (*sandbox.Manager, api.Sandbox) {
	b.Helper()
	w := newFixture(b)
	m := w.manager(false)
	return m, w.create(m, "bench")
}

func benchStart(b *testing.B, m *sandbox.Manager, sb api.Sandbox, spec api.ProcessSpec) {
	b.Helper()
	spec.Cwd = "/"
	p, err := policy.DecideProcess(spec, policy.SettingsOf(sb), operator, testRules)
	if err == nil {
		_, err = m.StartProcess(b.Context(), operator, sb.ID, p)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func benchAttach(b *testing.B, m *sandbox.Manager, sb api.Sandbox, r api.AttachRequest) *process.Attachment {
	b.Helper()
	a, err := m.Attach(b.Context(), operator, sb.ID, "p", r)
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// BenchmarkAttachFirstByte is from an attach to the first byte of what was
// printed before.
func BenchmarkAttachFirstByte(b *testing.B) {
	for _, write := range []bool{false, true} {
		b.Run(fmt.Sprintf("write=%t", write), func(b *testing.B) {
			m, sb := benchFixture(b)
			spec := shell("p", "echo hello; exec sleep 600")
			spec.OpenStdin = true
			benchStart(b, m, sb, spec)
			for b.Loop() {
				a := benchAttach(b, m, sb, api.AttachRequest{Since: new(int64(0)), Write: write})
				if ev, err := a.Recv(); err != nil || len(ev.Data) == 0 {
					b.Fatal(ev, err)
				}
				a.Close()
			}
		})
	}
}

// BenchmarkFollowers is from a write of input to its echo at each of so many
// attaches; p50-ms is of the echo at one of them.
func BenchmarkFollowers(b *testing.B) {
	for _, n := range []int{1, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, sb := benchFixture(b)
			benchStart(b, m, sb, cat("p"))
			var mu sync.Mutex
			var begun time.Time
			var took []time.Duration
			var readers, all sync.WaitGroup
			writer := benchAttach(b, m, sb, api.AttachRequest{Write: true})
			for i := range n {
				a := writer
				if i > 0 {
					a = benchAttach(b, m, sb, api.AttachRequest{})
				}
				all.Go(func() {
					defer a.Close()
					for {
						ev, err := a.Recv()
						if err != nil || ev.Exit != nil {
							return
						}
						if len(ev.Data) > 0 {
							mu.Lock()
							took = append(took, time.Since(begun))
							mu.Unlock()
							readers.Done()
						}
					}
				})
			}
			for b.Loop() {
				readers.Add(n)
				mu.Lock()
				begun = time.Now()
				mu.Unlock()
				if err := writer.Write([]byte("x")); err != nil {
					b.Fatal(err)
				}
				readers.Wait()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			if err := m.RemoveProcess(b.Context(), operator, sb.ID, "p"); err != nil {
				b.Fatal(err)
			}
			all.Wait()
		})
	}
}

// BenchmarkOutput is what one attach takes of a flood, the log on disk included.
func BenchmarkOutput(b *testing.B) {
	m, sb := benchFixture(b)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		spec := shell("p", fmt.Sprintf("read -r _; head -c %d /dev/zero", size))
		spec.OpenStdin, spec.OnFull = true, api.OnFullBlock
		benchStart(b, m, sb, spec)
		a := benchAttach(b, m, sb, api.AttachRequest{Write: true})
		if err := a.Write([]byte("\n")); err != nil {
			b.Fatal(err)
		}
		var got, gaps int64
		for {
			ev, err := a.Recv()
			if err != nil {
				b.Fatal(err)
			}
			got += int64(len(ev.Data))
			if ev.Gap != nil {
				gaps += ev.Gap.Bytes
			}
			if ev.Exit != nil {
				break
			}
		}
		if got+gaps != size {
			b.Fatalf("%d bytes came and %d are missing, want %d", got, gaps, size)
		}
		b.ReportMetric(float64(gaps), "gap-bytes")
		a.Close()
		if err := m.RemoveProcess(b.Context(), operator, sb.ID, "p"); err != nil {
			b.Fatal(err)
		}
	}
}

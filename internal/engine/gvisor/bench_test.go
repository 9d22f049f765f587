//go:build linux

package gvisor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// BenchmarkCreate takes the time of each step of a sandbox's life. The reported
// values are medians; ns/op holds the whole round.
func BenchmarkCreate(b *testing.B) {
	im := enginetest.BuildImages(b, b.TempDir())
	for _, kind := range []string{"image", "mount"} {
		b.Run(kind, func(b *testing.B) {
			e, err := gvisor.New(gvisor.Options{StateDir: b.TempDir(), Logger: logger})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			var create, echo, closing []time.Duration
			for b.Loop() {
				p := enginetest.Plan(b, im)
				p.ID = api.NewID("sb-")
				if kind == "mount" {
					p.Mounts = []engine.Mount{{Source: b.TempDir(), Target: "/srv/job"}}
				}
				t0 := time.Now()
				i, err := e.Create(b.Context(), p)
				if err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if err := enginetest.Echo(b.Context(), i, "hello"); err != nil {
					b.Fatal(err)
				}
				t2 := time.Now()
				if err := i.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
				create, echo, closing = append(create, t1.Sub(t0)), append(echo, t2.Sub(t1)), append(closing, time.Since(t2))
			}
			for name, d := range map[string][]time.Duration{"create": create, "echo": echo, "close": closing} {
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, fmt.Sprintf("%s-ms", name))
			}
		})
	}
}

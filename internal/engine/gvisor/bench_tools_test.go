//go:build linux

package gvisor_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// BenchmarkHostTools runs programs of this machine from read-only mounts.
func BenchmarkHostTools(b *testing.B) {
	e := newEngine(b, b.TempDir())
	p := enginetest.Plan(b, enginetest.BuildImages(b, b.TempDir()))
	for _, d := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if _, err := os.Stat(d); err == nil {
			p.Mounts = append(p.Mounts, engine.Mount{Source: d, Target: d, ReadOnly: true, Static: true})
		}
	}
	i, err := e.Create(b.Context(), p)
	if err != nil {
		b.Fatal(err)
	}
	defer i.Close(b.Context())
	for name, argv := range map[string][]string{
		"true":   {"/usr/bin/true"},
		"python": {"/usr/bin/python3", "-c", "import json, asyncio"},
		"find":   {"/usr/bin/find", "/usr/lib/python3", "-name", "x"},
	} {
		b.Run(name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				began := time.Now()
				if o, err := enginetest.Exec(b.Context(), i, argv...); err != nil || o.Code != 0 {
					b.Fatalf("%v: %v %s", argv, err, o.Output)
				}
				all = append(all, time.Since(began))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "median-ms")
		})
	}
}

//go:build linux

package ingvisor

import (
	"slices"
	"testing"
	"time"
)

func TestHello(t *testing.T) {
	b := boot(t, nil)
	t.Log(b.run(t, "echo hello; id; cat /proc/self/status; ps -ef; ls -l /proc/self/fd; mount; cat /proc/self/uid_map"))
}

func TestLatency(t *testing.T) {
	b := boot(t, nil)
	var ds []time.Duration
	for range 200 {
		at := time.Now()
		r, err := b.Exec(t.Context(), start("/bin/true"))
		if err != nil || !r.OK() {
			t.Fatal(r, err)
		}
		ds = append(ds, time.Since(at))
	}
	slices.Sort(ds)
	t.Logf("p10 %v p50 %v p90 %v", ds[20], ds[100], ds[180])
}

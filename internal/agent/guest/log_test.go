//go:build linux

package guest

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
)

func TestBudget(t *testing.T) {
	in := boot(t, withBudget(256<<10))
	for range 6 {
		in.run(t, "head -c 100000 /dev/zero") // an exec's
	}
	p := managedShell("head -c 300000 /dev/zero; sleep 100")
	in.must(t, p)
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 300_000 })
	held := map[string]int{}
	if err := in.Logs(t.Context(), api.LogOptions{}, func(e api.LogEntry) error {
		held[e.ExecID] += len(e.Data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, n := range held {
		total += n
	}
	if total > 256<<10+output.BlockBytes || held[p.ExecID] < output.FloorBytes {
		t.Fatalf("%d bytes are held, %d of the one that runs", total, held[p.ExecID])
	}
	if _, errs := outputOf(t, in.Client, managedDone(t, in), 0); errs != "" {
		t.Fatal(errs)
	}
}

// managedDone is a process that has ended.
func managedDone(t *testing.T, in *inside) string {
	p := managedShell("echo done")
	in.must(t, p)
	until(t, in.Client, p.ExecID, ended)
	return p.ExecID
}

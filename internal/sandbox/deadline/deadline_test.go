package deadline

import (
	"testing"
	"time"
)

// TestWantedPrograms: a program that the agent does not know is over, unless a call waits
// for it; then the agent is asked once more.
func TestWantedPrograms(t *testing.T) {
	table := &Table{}
	table.Init(Options{Sandbox: "sb", Dir: t.TempDir(), Context: t.Context(), Grace: time.Minute, Look: time.Minute})
	defer table.End()
	table.Ask("wanted", 1)
	for _, id := range []string{"wanted", "over"} {
		table.Set(id, time.Hour)
		d := table.byID[id]
		for i, again := range []bool{id == "wanted", false} {
			if got, more := table.wanted(d); got != (id == "wanted") || more != again {
				t.Errorf("%s, asked %d times: %t, %t", id, i, got, more)
			}
		}
	}
	table.Ask("wanted", -1)
	if got, _ := table.wanted(table.byID["wanted"]); got || len(table.asked) != 0 {
		t.Error("a call that has ended waits")
	}
}

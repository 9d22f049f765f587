package stage

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

var (
	allMaking   = []Creation{makingUnrecorded, CreationCanceled, CreationRecorded, CreationAnnounced, CreationUnreadable}
	allTeardown = []Teardown{TeardownNone, TeardownDue, TeardownRemoving, TeardownErasing, TeardownRemoved}
)

// machine is one of the two machines, by the names of its stages.
type machine struct {
	table string
	step  func(from, to int) (got int, ok bool)
}

// Both machines, as pictures: a row may go to the columns marked x, and stays where it is
// otherwise.
func TestLifecycleSteps(t *testing.T) {
	for name, c := range map[string]machine{
		"making": {`
	            unrecorded canceled recorded announced unreadable
	unrecorded       .        x        x         .         .
	canceled         .        .        x         .         .
	recorded         .        .        .         x         .
	announced        .        .        .         .         .
	unreadable       .        .        .         .         .`,
			func(from, to int) (int, bool) {
				m := allMaking[from]
				ok := m.Step(allMaking[to])
				return slices.Index(allMaking, m), ok
			}},
		"teardown": {`
	         none due removing erasing removed
	none       .   x      x       .       .
	due        x   .      x       .       .
	removing   .   .      .       x       .
	erasing    .   .      .       .       x
	removed    .   .      .       .       .`,
			func(from, to int) (int, bool) {
				s := allTeardown[from]
				ok := s.Step(allTeardown[to])
				return slices.Index(allTeardown, s), ok
			}},
	} {
		rows := strings.Split(strings.TrimSpace(c.table), "\n")[1:]
		if len(rows) != 5 {
			t.Fatalf("%s has %d rows", name, len(rows))
		}
		for from, row := range rows {
			for to, mark := range strings.Fields(row)[1:] {
				want := from
				if mark == "x" {
					want = to
				}
				if got, ok := c.step(from, to); ok != (mark == "x") || got != want {
					t.Errorf("%s: from stage %d to %d: %v, and it is at %d", name, from, to, ok, got)
				}
			}
		}
	}
	if len(makingSteps) != len(allMaking) || len(teardownSteps) != len(allTeardown) {
		t.Error("a stage is missing")
	}
}

// What each stage means for those that read it.
func TestLifecycleStages(t *testing.T) {
	for m, want := range map[Creation][2]bool{
		makingUnrecorded: {false, false}, CreationCanceled: {false, false}, CreationRecorded: {true, false},
		CreationAnnounced: {true, true}, CreationUnreadable: {true, true},
	} {
		if got := [2]bool{m.Recorded(), m.Announced()}; got != want {
			t.Errorf("making %d: recorded, announced are %v", m, got)
		}
	}
	for s, want := range map[Teardown][2]bool{
		TeardownNone: {false, false}, TeardownDue: {false, false}, TeardownRemoving: {true, false},
		TeardownErasing: {true, true}, TeardownRemoved: {true, true},
	} {
		if got := [2]bool{s.Removing(), s.Erasing()}; got != want {
			t.Errorf("teardown %d: removing, erasing are %v", s, got)
		}
	}
}

// Every combination of a State with both machines is legal or not, as this picture says: the
// letters are the stages in their order, lower case for making, upper case for teardown (G is removed).
func TestLegalCombinations(t *testing.T) {
	const making, teardown = "ucrax", "NDREG"
	want := map[api.State][2]string{
		api.StateCreating:  {"uc", "N"},
		api.StateRunning:   {"ura", "NDR"},
		api.StatePaused:    {"ura", "NDR"},
		api.StateSuspended: {"a", "NDR"},
		api.StateStopping:  {"urax", "NDREG"},
		api.StateStopped:   {"urax", "NDR"},
		api.StateLost:      {"a", "NDREG"},
		api.StateFailed:    {"ax", "NR"},
		api.StateDeleting:  {"ucrax", "REG"},
	}
	if len(want) != len(api.States()) || len(combinations) != len(api.States()) {
		t.Fatal("a state is missing")
	}
	for _, state := range api.States() {
		for i, m := range allMaking {
			for j, s := range allTeardown {
				ok := strings.Contains(want[state][0], making[i:i+1]) && strings.Contains(want[state][1], teardown[j:j+1])
				if Legal(state, m, s) != ok {
					t.Errorf("%s with stage %d of making and %d of teardown: legal %t", state, m, s, !ok)
				}
			}
		}
	}
	if Legal("unknown", CreationAnnounced, TeardownNone) {
		t.Error("an unknown state is legal")
	}
}

// The processes of an image have its user, unless the request names one, or the daemon can give them only root.
func TestTakeUser(t *testing.T) {
	for wanted, asked := range map[string]string{"1001": "", "root": "", "0:0": "", "7": "user"} {
		for _, rootless := range []bool{false, true} {
			info := api.Sandbox{User: asked}
			TakeUser(&info, wanted, rootless)
			want, told := wanted, 0
			if asked != "" {
				want = asked
			} else if rootless && wanted == "1001" {
				want, told = "root", 1
			}
			if info.User != want || len(info.Unenforced) != told {
				t.Errorf("%q where %q was asked for: %q, %v", wanted, asked, info.User, info.Unenforced)
			}
		}
	}
}

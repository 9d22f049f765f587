//go:build linux

package role

import (
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

// TestInstall: only the first argument asks for a guard, and one that cannot be installed
// is no silent end of the rules' record.
func TestInstall(t *testing.T) {
	for _, args := range [][]string{{"sentry"}, {"sentry", "boot", refusal.FlagName + "3,4,5"}, nil} {
		if got, err := Install(args, nil); err != nil || !slices.Equal(got, args) {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
	for _, arg := range []string{"", "x", "3", "3,4", "3,4,5,6", "-1,-1,-1", "3,,5"} {
		if got, err := Install([]string{"sentry", refusal.FlagName + arg, "boot"}, nil); err == nil {
			t.Errorf("%q: %q", arg, got)
		}
	}
}

// TestCallsAreGvisors: every call that is watched is in a table of gVisor's, or is
// newer than it.
func TestCallsAreGvisors(t *testing.T) {
	have := map[string]bool{}
	for _, table := range tables() {
		for _, sc := range table.Table {
			have[sc.Name] = true
		}
	}
	for name, c := range calls() {
		if !have[name] && name != "fchmodat2" {
			t.Errorf("gVisor has no call %q", name)
		}
		if len(c.op) > refusal.MaxOp || len(c.places) == 0 || c.change == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for name := range xattrCalls() {
		if _, ok := calls()[name]; !ok {
			t.Errorf("%s is not watched", name)
		}
	}
}

//go:build linux

package e2e_test

import (
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

// leftovers [dir…] asserts that no sandbox has left anything: no process but the
// daemon, no mount, no loop device, no cgroup, no directory of a sandbox in the home. What is on
// its network is waited for. As arguments come more directories to hold empty.
func cmdLeftovers(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: leftovers [dir...]")
	}
	s := state(ts)
	var left []string
	clean := fixture.Poll(func() bool {
		left = slices.Concat(s.LeftProcesses(), s.LeftMounts(), s.LeftGroups(), s.LeftDirs(), leftLoops(s))
		for _, dir := range args {
			left = append(left, fixture.Within(ts.MkAbs(dir))...)
		}
		return len(left) == 0
	})
	if !clean {
		ts.Fatalf("left behind:\n\t%s", strings.Join(left, "\n\t"))
	}
}

//go:build linux

package nsjail_test

import (
	"os/exec"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// TestUnderAnotherKernel proves the engine where cgroups are of version 2 alone: as root
// and as a normal user to whom a group was delegated.
func TestUnderAnotherKernel(t *testing.T) {
	path := program()
	if path == "" {
		var err error
		if path, err = exec.LookPath(nsjail.Name); err != nil {
			t.Skip("needs the nsjail binary: there is none in PATH, and CLOCHE_TEST_NSJAIL names none")
		}
	}
	limits := []string{"TestEngine/MemoryLimit", "TestEngine/PidsLimitForAgent"}
	enginetest.OtherKernel{
		Major: 6, Minor: 6,
		Programs: map[string]string{"/usr/bin/nsjail": path},
		Batches: []enginetest.Batch{
			{
				Name: "root", Pattern: "^TestEngine$/^(SweepAfterSuddenDeath|Pause|MemoryLimit|PidsLimitForAgent)$",
				Must: append([]string{"TestEngine/SweepAfterSuddenDeath", "TestEngine/Pause"}, limits...),
			},
			{Name: "user", Pattern: "^TestEngine$/^(MemoryLimit|PidsLimitForAgent)$", Place: plan.Delegated, Must: limits},
		},
	}.Under(t)
}

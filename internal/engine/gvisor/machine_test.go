//go:build linux

package gvisor_test

import (
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// TestUnderAnotherKernel proves the engine where cgroups are of version 2 alone: as root
// and as a normal user to whom a group was delegated. On an emulated processor a sandbox
// takes its time, so it is what the groups have most of a part in.
func TestUnderAnotherKernel(t *testing.T) {
	enginetest.OtherKernel{
		Major: 6, Minor: 1,
		Batches: []enginetest.Batch{
			{
				Name: "root", Pattern: "^TestEngine$/^(SweepAfterSuddenDeath|PausedInLaterProcess|MemoryLimit|CPULimit)$",
				Must: []string{"TestEngine/SweepAfterSuddenDeath", "TestEngine/PausedInLaterProcess", "TestEngine/MemoryLimit", "TestEngine/CPULimit"},
			},
			{Name: "user", Pattern: "^TestEngine$/^MemoryLimit$", Place: plan.Delegated, Must: []string{"TestEngine/MemoryLimit"}},
		},
	}.Under(t)
}

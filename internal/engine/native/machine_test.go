//go:build linux

package native_test

import (
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// TestUnderAnotherKernel proves the engine where cgroups are of version 2 alone: as root,
// as a normal user to whom a group was delegated, and as root of a container. It is what
// groups have a part in.
func TestUnderAnotherKernel(t *testing.T) {
	limits := []string{"TestEngine/MemoryLimit", "TestEngine/CPULimit", "TestEngine/PidsLimitForAgent"}
	enginetest.OtherKernel{
		Major: 6, Minor: 6,
		Batches: []enginetest.Batch{
			{
				Name: "root", Pattern: "^TestEngine$/^(SweepAfterSuddenDeath|Pause|PausedInLaterProcess|MemoryLimit|CPULimit|PidsLimitForAgent)$",
				Must: append([]string{"TestEngine/SweepAfterSuddenDeath", "TestEngine/Pause", "TestEngine/PausedInLaterProcess"}, limits...),
			},
			{Name: "user", Pattern: "^TestEngine$/^(Pause|MemoryLimit|CPULimit|PidsLimitForAgent)$", Place: plan.Delegated, Must: append([]string{"TestEngine/Pause"}, limits...)},
			{Name: "container", Pattern: "^TestEngine$/^(MemoryLimit|PidsLimitForAgent)$", Place: plan.Container, Must: []string{"TestEngine/MemoryLimit", "TestEngine/PidsLimitForAgent"}},
		},
	}.Under(t)
}

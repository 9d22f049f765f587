package sandbox

import (
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func TestCPUPercent(t *testing.T) {
	ms, at := int64(1500), time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	later, more := at.Add(time.Second), int64(2000)
	share := cpuPercent(api.SandboxStats{ObservedAt: at, CPUMS: &ms}, api.SandboxStats{ObservedAt: later, CPUMS: &more})
	if share == nil || *share < 49 || *share > 50 {
		t.Errorf("%v", share)
	}
	for _, before := range []api.SandboxStats{{}, {ObservedAt: at}, {ObservedAt: later, CPUMS: &ms}} {
		if share := cpuPercent(before, api.SandboxStats{ObservedAt: later, CPUMS: &more}); share != nil {
			t.Errorf("%+v gives %v", before, *share)
		}
	}
}

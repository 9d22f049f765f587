package enginetest

import (
	"fmt"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// agentPort is where the suite's agent listens.
const agentPort = 10421

// Plan is an ordinary plan with the suite's images, an id of its own and no
// mounts.
func Plan(t testing.TB, im Images) engine.Plan {
	t.Helper()
	return engine.Plan{
		ID:       api.NewID("sb-"),
		Owner:    "enginetest",
		Dir:      t.TempDir(),
		Hostname: "enginetest",
		Root:     engine.Root{Image: im.Root},
		Tmpfs:    []engine.Tmpfs{{Target: "/tmp", SizeBytes: 64 << 20, Mode: 0o1777}},
		Limits:   engine.Limits{MemoryBytes: 1 << 30, CPUs: 2, Pids: 1024, DiskBytes: 64 << 20},
		Agent: engine.Agent{
			Image:  im.Agent,
			Target: AgentTarget,
			Argv:   []string{Inside, "agent"},
			Config: fmt.Appendf(nil, `{"Port":%d}`, agentPort),
			Port:   agentPort,
		},
	}
}

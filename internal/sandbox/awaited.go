package sandbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
)

// theAgent is how errors name an agent.
const theAgent = "the sandbox's agent"

// named makes the name of a part of a sandbox for errors: it says which processes of the
// sandbox are stopped at the moment.
func named(inst any, part string) func() string {
	return func() string {
		s, ok := inst.(engine.Stoppable)
		if !ok {
			return part
		}
		stopped := s.Stopped()
		if len(stopped) == 0 {
			return part
		}
		return fmt.Sprintf("%s (stopped: its %s)", part, strings.Join(stopped, " and "))
	}
}

// byEngine notes that a call waits for the engine of an instance, until done is called.
func byEngine(ctx context.Context, inst any) (done func()) {
	return await.Of(ctx, named(inst, "the sandbox's engine"))
}

// lockOps locks s.ops for a call.
func (s *live) lockOps(ctx context.Context) {
	defer await.For(ctx, "another operation on the sandbox")()
	s.ops.Lock()
}

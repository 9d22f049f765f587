package agent

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Usage is how many processes run inside, beside the agent, and the agent's resident set size in bytes,
// or 0 if that is not known. An agent of an earlier version is api.CodeUnsupported.
func (c *Client) Usage(ctx context.Context) (processes, agentBytes int64, err error) {
	if c.Version() < wire.OpUsage.Since() {
		return 0, 0, api.Errorf(api.CodeUnsupported, "the sandbox's agent counts no processes")
	}
	u, err := ask[wire.Usage](ctx, c, wire.Request{Op: wire.OpUsage})
	return max(u.Processes, 0), max(u.AgentBytes, 0), err
}

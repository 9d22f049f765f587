package agent

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// CountProcesses is how many processes run inside, beside the agent. An agent of an earlier
// version is api.CodeUnsupported.
func (c *Client) CountProcesses(ctx context.Context) (int64, error) {
	if c.Version() < wire.OpUsage.Since() {
		return 0, api.Errorf(api.CodeUnsupported, "the sandbox's agent counts no processes")
	}
	u, err := ask[wire.Usage](ctx, c, wire.Request{Op: wire.OpUsage})
	return max(u.Processes, 0), err
}

package sandbox

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// ForkCommand is "cloche fork".
func ForkCommand(a *command.CLI) *cobra.Command {
	var count int
	c := &cobra.Command{
		Use:   "fork SANDBOX [NAME...]",
		Short: "Create sandboxes that continue from the memory of another",
		Long: `Create sandboxes that continue from the memory and the files of another, with
its processes. The sandbox runs or is suspended. One that runs is paused for a
moment, and keeps its connections. Each fork has a lease, a network and a token
of its own, and no open ports. Policy decides about each.

A sandbox can't be forked if its forks would share what only one can have: a
named or layered workspace, a directory of the host that it can write to, or a
secret with mode env. Random generators of programs repeat in each fork, unless
they are seeded again. Only engine gvisor can do it.`,
		Example: "  cloche fork build\n" +
			"  cloche fork build try-1 try-2\n" +
			"  cloche fork build -n 20",
		GroupID:           command.GroupRun,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			req := api.ForkRequest{Count: count, Names: args[1:]}
			if len(req.Names) == 0 {
				req.Count = cmp.Or(count, 1)
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return fork(ctx, a, conn, args[0], req) })
		},
	}
	c.Flags().IntVarP(&count, "count", "n", 0, "create this `NUMBER` of forks, with their IDs as names (default 1)")
	return c
}

func fork(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, req api.ForkRequest) error {
	p := command.StartProgress(a.Stdio.Err, a.ShowProgress(), fmt.Sprintf("creating %d forks", max(req.Count, len(req.Names))))
	res, err := conn.Fork(ctx, ref, req)
	p.Stop()
	if err != nil {
		return err
	}
	return announceMany(a, res.BatchResult)
}

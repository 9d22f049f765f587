package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func killCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "kill SANDBOX[/PROCESS]...",
		Short: "Kill sandboxes, or single processes",
		Long: `Kill every process of a sandbox at once. The record, the logs and a named
workspace stay; "cloche rm" removes them. SANDBOX/PROCESS, or SANDBOX PROCESS,
kills one process and its children; the sandbox keeps running.

If an argument doesn't exist, nothing is killed.`,
		Example:           "  cloche kill runaway\n  cloche kill build/worker",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachTarget(c.Context(), args, "killing", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Kill(ctx, ref)
			}, killProcess)
		},
	}
}

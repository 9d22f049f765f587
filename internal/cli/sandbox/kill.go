package sandbox

import (
	"context"

	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/spf13/cobra"
)

// KillCommand is "cloche kill".
func KillCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "kill SANDBOX[/PROCESS]...",
		Short: "Kill sandboxes, or single processes",
		Long: `Kill every process of a sandbox at once. The record, the logs and a named
workspace stay; "cloche rm" removes them. SANDBOX/PROCESS, or SANDBOX PROCESS,
kills one process and its children; the sandbox keeps running.

If an argument doesn't exist, nothing is killed.`,
		Example:           "  cloche kill runaway\n  cloche kill build/worker",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.EachTarget(c.Context(), args, "killing", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Kill(ctx, ref)
			}, command.KillProcess)
		},
	}
}

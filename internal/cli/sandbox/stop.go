package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// StopCommand is "cloche stop".
func StopCommand(a *command.CLI) *cobra.Command {
	var grace string
	c := &cobra.Command{
		Use:   "stop SANDBOX[/PROCESS]...",
		Short: "Stop sandboxes, or single processes",
		Long: `Send TERM to every process, wait for the grace period, flush files, save what
was changed in the root, then kill the rest. "cloche start" starts the sandbox
again; "cloche rm" removes it with its record, its logs and a private workspace.
SANDBOX/PROCESS, or SANDBOX PROCESS, stops one process and its children; the
sandbox keeps running.

If an argument doesn't exist, nothing is stopped.`,
		Example:           "  cloche stop build\n  cloche stop build/worker\n  cloche stop --grace 30s build test",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var o api.StopOptions
			wait := command.DefaultGrace
			if c.Flags().Changed("grace") {
				ms, err := command.ParseTimeout("--grace", "grace_ms", grace)
				if err != nil {
					return err
				}
				o.GraceMS = &ms
				wait = time.Duration(ms) * time.Millisecond
			}
			return a.EachTarget(c.Context(), args, "stopping", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Stop(ctx, ref, o)
			}, func(ctx context.Context, conn *command.Connection, r command.ProcessRef) (any, error) {
				return command.StopProcess(ctx, conn, r, wait)
			})
		},
	}
	c.Flags().StringVar(&grace, "grace", "", "the grace period after TERM, such as 30s (default 10s)")
	return c
}

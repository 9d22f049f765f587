package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func (a *app) killCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "kill SANDBOX...",
		Short:             "End sandboxes at once",
		Long:              "Kill every process without asking. The record, the logs and a named workspace\nstay; \"cloche rm\" removes them.",
		Example:           "  cloche kill runaway",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.each(c.Context(), args, "killing", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Kill(ctx, ref)
			})
		},
	}
}

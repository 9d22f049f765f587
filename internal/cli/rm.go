package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

// removed is the JSON result of rm.
type removed struct {
	Removed string `json:"removed"`
}

func (a *app) rmCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "rm SANDBOX...",
		Short: "Remove sandboxes with their logs and private workspaces",
		Long: `Remove sandboxes that have ended, with their records, logs and private
workspaces. Named workspaces and directories of the host stay. With --force one
that still runs is killed first, and one that does not exist is no error.`,
		Example:           "  cloche rm build\n  cloche rm -f $(cloche ls -aq)",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.each(c.Context(), args, "removing", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return removed{ref}, remove(ctx, conn, ref, force)
			})
		},
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "kill what still runs; no error for what does not exist")
	return c
}

func remove(ctx context.Context, conn *connection, ref string, force bool) error {
	if force {
		if err := conn.Remove(ctx, ref); !errors.Is(err, cloche.ErrNotFound) {
			return err
		}
		return nil
	}
	sb, err := conn.Get(ctx, ref)
	if err != nil {
		return err
	}
	if live(sb.State) {
		return cloche.Errorf(cloche.CodeState, "sandbox %s is %s", ref, sb.State).WithHint(`"cloche stop %s" first, or "cloche rm -f %s"`, ref, ref)
	}
	return conn.Remove(ctx, sb.ID)
}

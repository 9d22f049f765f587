package sandbox

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// LsCommand is "cloche ls".
func LsCommand(a *command.CLI) *cobra.Command {
	var labels, states []string
	var quiet, all bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Long: `List running sandboxes, newest first; with --all also ended ones that are on
record. EXPIRES is the end of the lease without further use.`,
		Example: "  cloche ls\n  cloche ls -a --label team=research\n  cloche ls --state lost --json",
		GroupID: command.GroupLook,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			o := api.ListOptions{Limit: command.MaxListPage}
			var err error
			if o.Labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			if o.States, err = command.ParseStates(states, all); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return command.List(ctx, a, conn, o, quiet) })
		},
	}
	c.Flags().StringArrayVar(&labels, "label", nil, "only those with this label, `KEY=VALUE` (repeatable: all must match)")
	c.Flags().StringArrayVar(&states, "state", nil, "only sandboxes in this `state` (repeatable: any may match)")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	c.Flags().BoolVarP(&all, "all", "a", false, "also ended ones")
	return c
}

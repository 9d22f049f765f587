package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxListPage is the largest page of a list.
const maxListPage = 1000

func lsCommand(a *command.CLI) *cobra.Command {
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
			o := api.ListOptions{Limit: maxListPage}
			var err error
			if o.Labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			if o.States, err = parseStates(states, all); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return list(ctx, a, conn, o, quiet) })
		},
	}
	c.Flags().StringArrayVar(&labels, "label", nil, "only those with this label, `KEY=VALUE` (repeatable: all must match)")
	c.Flags().StringArrayVar(&states, "state", nil, "only sandboxes in this `state` (repeatable: any may match)")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	c.Flags().BoolVarP(&all, "all", "a", false, "also ended ones")
	return c
}

// parseStates is the filter: what was named, or what lives, or all.
func parseStates(names []string, all bool) ([]api.State, error) {
	known := api.States()
	var states []api.State
	for _, n := range names {
		if !slices.Contains(known, api.State(n)) {
			return nil, api.Invalid("state", "--state %q is not a state", command.Clip(n)).WithHint("the states are %v", known)
		}
		states = append(states, api.State(n))
	}
	if len(states) == 0 && !all {
		states = slices.DeleteFunc(known, func(s api.State) bool { return !command.Live(s) })
	}
	return states, nil
}

func list(ctx context.Context, a *command.CLI, conn *command.Connection, o api.ListOptions, quiet bool) error {
	list := api.SandboxList{Sandboxes: []api.Sandbox{}}
	for sb, err := range conn.ListAll(ctx, o) {
		if err != nil {
			return err
		}
		list.Sandboxes = append(list.Sandboxes, sb)
	}
	switch {
	case a.JSON:
		return a.PrintJSON(list)
	case quiet:
		for _, sb := range list.Sandboxes {
			fmt.Fprintln(a.Stdio.Out, terminal.Printable(sb.ID))
		}
		return nil
	}
	var rows [][]string
	for _, sb := range list.Sandboxes {
		rows = append(rows, []string{sb.ID, sb.Name, string(sb.State), sb.Image, sb.Engine, command.FormatAge(time.Since(sb.CreatedAt)), expires(sb, time.Now())})
	}
	return command.WriteTable(a.Stdio.Out, []string{"ID", "NAME", "STATE", "IMAGE", "ENGINE", "AGE", "EXPIRES"}, rows)
}

// expires returns how long the lease of a sandbox lasts from now, if it is not used.
func expires(sb api.Sandbox, now time.Time) string {
	if sb.ExpiresAt == nil || !command.Live(sb.State) {
		return "-"
	}
	return "in " + command.FormatAge(sb.ExpiresAt.Sub(now))
}

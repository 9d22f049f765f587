package daemon

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// SecretCommand is "cloche secret".
func SecretCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "secret",
		Short: "List secrets for sandboxes",
		Long: `Secrets are available to sandboxes by name. The policy file has the source of
each value, the hosts that may receive it and the callers that can use it; "run"
and "create" request one with --secret. No command shows a value.`,
		Example: "  cloche secret ls\n  cloche run --net on --allow api.openai.com --secret openai=OPENAI_API_KEY -- python3 ask.py",
		GroupID: command.GroupHost,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(secretListCommand(a))
	return c
}

func secretListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the secrets that you can use",
		Long: `List the secrets that you can use: their names, the hosts that may receive their
values, and whether programs get a placeholder or the value itself.`,
		Example: "  cloche secret ls\n  cloche secret ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Secrets(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Secrets = append([]api.Secret{}, list.Secrets...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, s := range list.Secrets {
					rows = append(rows, secretRow(s))
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "MODES", "HOSTS", "FROM"}, rows)
			})
		},
	}
}

func secretRow(s api.Secret) []string {
	row := []string{s.Name, "", strings.Join(s.Hosts, ","), s.From}
	modes := make([]string, len(s.Modes))
	for i, m := range s.Modes {
		modes[i] = string(m)
	}
	row[1] = strings.Join(modes, ",")
	for i := range row {
		if row[i] == "" {
			row[i] = "-"
		}
	}
	return row
}

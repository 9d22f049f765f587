package sandbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// NameCommand is "cloche name".
func NameCommand(a *command.CLI) *cobra.Command {
	var f command.NamingFlags
	c := &cobra.Command{
		Use:   "name",
		Short: "Print the name that a template gives",
		Long: `Print the sandbox name of a template and an identity, whether the sandbox exists
or not. "cloche create", "exec" and "start" take the same flags, the latter two
with "-" for the sandbox; other commands take the name.`,
		Example: "  cloche name --identity launcher_type=group --identity launcher_id=42\n  cloche logs $(cloche name --identity launcher_id=42)",
		GroupID: command.GroupLook,
		Args:    command.Exactly(0, "none: who it is goes with --identity"),
		RunE: func(c *cobra.Command, _ []string) error {
			n, err := f.Naming()
			if err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				r, err := conn.ResolveName(ctx, n)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(r)
				}
				if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(r.Name)); err != nil {
					return command.OutputError(err)
				}
				return nil
			})
		},
	}
	f.Register(c.Flags())
	return c
}

// InfoCommand is "cloche info".
func InfoCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "Show your tenant and what the daemon lets you choose",
		Long: `Show your tenant, how the daemon names sandboxes, whether the operator forces
names, and the limits of requests.`,
		Example: "  cloche info\n  cloche info --json",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				i, err := conn.Info(ctx)
				if err != nil {
					return err
				}
				return printInfo(a, i)
			})
		},
	}
}

func printInfo(a *command.CLI, i api.Info) error {
	if a.JSON {
		return a.PrintJSON(i)
	}
	who := i.Tenant
	if i.Operator {
		who += ", the operator"
	}
	names := i.NameTemplate + ", unless a request says otherwise"
	if i.ScopeForced {
		names = i.NameTemplate + ", forced by the operator"
	}
	limit := func(n int, what string) string {
		if n == 0 {
			return "any number of " + what
		}
		return strconv.Itoa(n) + " " + what
	}
	rate := "any number of requests"
	if i.Limits.RequestsPerSecond > 0 {
		rate = fmt.Sprintf("%g requests a second, %d at once", i.Limits.RequestsPerSecond, i.Limits.Burst)
	}
	var b strings.Builder
	for _, l := range [][2]string{
		{"daemon", i.Version + " (API " + i.API + ")"}, {"tenant", who}, {"names", names},
		{"profiles", strings.Join(i.Profiles, ", ") + " (default " + i.DefaultProfile + ")"},
		{"tenant's limits", limit(i.Limits.Sandboxes, "sandboxes") + ", " + rate},
		{"of one exec", fmt.Sprintf("%s of arguments, %s of input, %s kept of each stream", command.FormatSize(i.Limits.ArgvBytes), command.FormatSize(i.Limits.StdinBytes), command.FormatSize(i.Limits.OutputBytes))},
	} {
		fmt.Fprintf(&b, "%s: %s\n", l[0], terminal.Printable(l[1]))
	}
	if _, err := fmt.Fprint(a.Stdio.Out, b.String()); err != nil {
		return command.OutputError(err)
	}
	return nil
}

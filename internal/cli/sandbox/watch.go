package sandbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// WatchCommand is "cloche watch".
func WatchCommand(a *command.CLI) *cobra.Command {
	var o api.WatchOptions
	var user string
	c := &cobra.Command{
		Use:   "watch [flags] SANDBOX DIRECTORY",
		Short: "Show changes of files in a directory of a sandbox",
		Long: `Show changes of files in a directory of a sandbox, one line each with the kind
and the path relative to the directory, until it is interrupted or the directory
is removed. The first line is "ready": each change after it is shown.

Kinds are create, write, remove, rename, chmod and overflow. A move is a rename
of the old name and a create of the new one. "overflow" means that changes were
lost because there were too many at once. With --json each line is one document,
with the file after the change if --entries is given.`,
		Example: `  cloche watch build /workspace
  cloche watch -r --json build /workspace/src`,
		GroupID:           command.GroupLook,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				files := conn.Files(args[0], api.FileAccess{User: user})
				return command.UntilInterrupted(ctx, true, files.Watch(ctx, args[1], o, func(ch api.FileChange) error { return showChange(a, ch) }))
			})
		},
	}
	c.Flags().BoolVarP(&o.Recursive, "recursive", "r", false, "watch the directories below too")
	c.Flags().BoolVar(&o.Entries, "entries", false, "add the file to its changes, for --json")
	c.Flags().StringVar(&user, "user", "", "watch what this `USER` of the sandbox may read")
	return c
}

// showChange prints one change.
func showChange(a *command.CLI, c api.FileChange) error {
	if a.JSON {
		return a.PrintJSON(c)
	}
	_, err := fmt.Fprintln(a.Stdio.Out, strings.TrimSpace(fmt.Sprintf("%-8s  %s", c.Kind, terminal.Printable(c.Name))))
	return err
}

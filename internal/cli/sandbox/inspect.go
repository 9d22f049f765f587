package sandbox

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// InspectCommand is "cloche inspect".
func InspectCommand(a *command.CLI) *cobra.Command {
	var processes, stats bool
	c := &cobra.Command{
		Use:   "inspect SANDBOX[/PROCESS]...",
		Short: "Show the records of sandboxes",
		Long: `Show the record of each sandbox as JSON: what was granted, what was adjusted,
what this machine can't enforce, when its lease ends. SANDBOX/PROCESS is the
record of one process. --processes shows the processes that were started in it,
and how they ended. --stats shows what it uses now, with the memory of the
sentry, the gofer, the programs and the agent. With --json each document is one
line.`,
		Example:           "  cloche inspect build\n  cloche inspect build/worker\n  cloche inspect --processes build\n  cloche inspect --stats build",
		GroupID:           command.GroupLook,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				for _, ref := range args {
					if err := inspect(ctx, a, conn, ref, processes, stats); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&processes, "processes", false, "show the processes that were started in it")
	c.Flags().BoolVar(&stats, "stats", false, "show what it uses now, with its memory by process")
	c.MarkFlagsMutuallyExclusive("processes", "stats")
	return c
}

func inspect(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, processes, stats bool) error {
	var v any
	switch r := command.ProcessArg([]string{ref}); {
	case r.Process != "":
		p, err := conn.Find(ctx, r)
		if err != nil {
			return err
		}
		v = p
	case processes:
		list, err := conn.Processes(ctx, ref)
		if err != nil {
			return err
		}
		v = api.ProcessList{Processes: append([]api.Process{}, list...)}
	case stats:
		got, err := conn.Stats(ctx, ref)
		if err != nil {
			return err
		}
		v = got
	default:
		sb, err := conn.Get(ctx, ref)
		if err != nil {
			return err
		}
		v = sb.Sandbox
	}
	if a.JSON {
		return a.PrintJSON(v)
	}
	return a.EncodeJSON(v, "  ")
}

package process

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// StdinCommand is "cloche stdin".
func StdinCommand(a *command.CLI) *cobra.Command {
	var end bool
	c := &cobra.Command{
		Use:   "stdin [flags] SANDBOX PROCESS",
		Short: "Send input to a process",
		Long: `Send standard input to a process, and end when all of it was written to the
process. The process's input stays open for more; --close closes it. A terminal
is read up to its end (ctrl-d), but with --close nothing is read from one.

The process must have been started with --open-stdin or --tty.`,
		Example:           "  echo 'print(6*7)' | cloche stdin build repl\n  cloche stdin --close build repl < /dev/null",
		GroupID:           command.GroupProcess,
		Args:              command.OneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithProcess(c, args, func(ctx context.Context, conn *command.Connection, ref command.ProcessRef, _ api.Process) error {
				ack, err := conn.WriteStdin(ctx, ref.Sandbox, ref.Process, nil, stdinFor(a, end), end)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(ack)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&end, "close", false, "close the process's input afterwards")
	return c
}

// stdinFor returns the input to send. With --close, it does not read a terminal: waiting for a
// ctrl-d would look like a hang.
func stdinFor(a *command.CLI, end bool) io.Reader {
	_, tty := command.TerminalOf(a.Stdio.In)
	if a.Stdio.In == nil || end && tty {
		return strings.NewReader("")
	}
	return a.Stdio.In
}

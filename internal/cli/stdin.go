package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
)

func stdinCommand(a *app) *cobra.Command {
	var end bool
	c := &cobra.Command{
		Use:   "stdin [flags] SANDBOX PROCESS",
		Short: "Send input to a process",
		Long: `Send standard input to a process, and end when all of it was written to the
process. The process's input stays open for more; --close closes it. A terminal
is read up to its end (ctrl-d), but with --close nothing is read from one.

The process must have been started with --open-stdin or --tty.`,
		Example:           "  echo 'print(6*7)' | cloche stdin build repl\n  cloche stdin --close build repl < /dev/null",
		GroupID:           groupProcess,
		Args:              oneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.completeProcess,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withProcess(c, args, func(ctx context.Context, conn *connection, ref processRef, _ api.Process) error {
				ack, err := conn.WriteStdin(ctx, ref.sandbox, ref.process, nil, stdinFor(a, end), end)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(ack)
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
func stdinFor(a *app, end bool) io.Reader {
	_, tty := terminalOf(a.stdio.In)
	if a.stdio.In == nil || end && tty {
		return strings.NewReader("")
	}
	return a.stdio.In
}

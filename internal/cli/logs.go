package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

func (a *app) logsCommand() *cobra.Command {
	var o cloche.LogOptions
	var stream string
	c := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "Show what the commands of a sandbox wrote",
		Long: `Show the output that is kept of the commands of a sandbox, standard output on
standard output and standard error on standard error. Where the middle of a long
output was dropped, a line on standard error says how much. With --json each run
of bytes is one document with its offset and time.`,
		Example:           "  cloche logs build\n  cloche logs --tail 20 --stream stderr build\n  cloche logs --exec ex-4k2mwd7e3x9qv0ha build",
		GroupID:           groupLook,
		Args:              exactly(1, "one sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			switch o.Stream = cloche.Stream(stream); {
			case o.Stream != "" && o.Stream != cloche.Stdout && o.Stream != cloche.Stderr:
				return cloche.Invalid("stream", "--stream %q is not a stream", clip(stream)).WithHint("give stdout or stderr, or leave it out for both")
			case o.Tail < 0:
				return cloche.Invalid("tail", "--tail %d is negative", o.Tail).WithHint("give a number of lines; 0 is all that is kept")
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error { return conn.Logs(ctx, args[0], o, a.logEntry) })
		},
	}
	c.Flags().StringVar(&o.ExecID, "exec", "", "only the command with this id")
	c.Flags().StringVar(&stream, "stream", "", "only stdout or stderr")
	c.Flags().IntVar(&o.Tail, "tail", 0, "only the last `N` lines (default all that is kept)")
	return c
}

func (a *app) logEntry(e cloche.LogEntry) error {
	if a.json {
		return a.printJSON(e)
	}
	if e.Gap > 0 {
		a.warn("%d bytes of %s of %s were not kept", e.Gap, e.Stream, e.ExecID)
	}
	var w io.Writer = a.stdio.Out
	if e.Stream == cloche.Stderr {
		w = a.stdio.Err
	}
	if _, err := w.Write(e.Data); err != nil {
		return outputError(err)
	}
	return nil
}

package process

import (
	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// AttachCommand is "cloche attach".
func AttachCommand(a *command.CLI) *cobra.Command {
	var f command.AttachFlags
	var since int64
	var keys string
	c := &cobra.Command{
		Use:   "attach [flags] SANDBOX PROCESS",
		Short: "Attach to a running process",
		Long: `Attach to a process: print its output as it is written, and send it what is
typed or piped in here, if its input is open and no other client has it. Any
number of clients can read, one can write. The process keeps running when this
program ends.

A process with a terminal first shows its recent screen. The detach keys leave
it running; so does an interrupt if the process has no terminal. --since starts
at that position of the output instead; a negative one counts from the end.

The end of the input here doesn't close the process's input, unless
--close-stdin is given. --exclusive keeps other writers out: it is for programs
that speak a protocol over their standard input and output.

A process with a terminal uses this one. For other processes, control characters
are printed and have no effect on a terminal, except for colours, unless --raw
is given.

A broken connection is reconnected, with nothing lost or repeated. The exit
status is the process's; 0 after the detach keys, 128+n after signal n.`,
		Example: `  cloche attach build repl
  cloche attach --read-only --since 0 build worker
  cloche attach --exclusive build mcp`,
		GroupID:           command.GroupProcess,
		Args:              command.OneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if f.Keys, err = command.ParseDetachKeys(keys); err != nil {
				return err
			}
			if f.Exclusive && f.ReadOnly {
				return api.Invalid("exclusive", "--exclusive and --read-only do not go together").WithHint("leave one of them out")
			}
			if c.Flags().Changed("since") {
				f.Since = &since
			}
			return command.Attach(c.Context(), a, command.ProcessArg(args), f)
		},
	}
	c.Flags().BoolVar(&f.Exclusive, "exclusive", false, "keep other writers out")
	c.Flags().BoolVar(&f.ReadOnly, "read-only", false, "read the output only")
	c.Flags().BoolVar(&f.CloseStdin, "close-stdin", false, "close the process's input when this input ends")
	c.Flags().BoolVar(&f.Raw, "raw", false, command.RawUsage)
	c.Flags().Int64Var(&since, "since", 0, "start at this `POSITION` of the output (default now)")
	c.Flags().StringVar(&keys, "detach-keys", command.DefaultDetachKeys, "keys that detach from a terminal; '' for no keys")
	return c
}

package process

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// ShellCommand is "cloche shell".
func ShellCommand(a *command.CLI) *cobra.Command {
	var keys string
	var who command.NamingFlags
	c := &cobra.Command{
		Use:   "shell [flags] SANDBOX",
		Short: "Open a shell in a running sandbox",
		Long: `Open bash, or sh if there is no bash, in a running sandbox: with a terminal if
this is one, and otherwise as a filter that reads commands from standard input.
With --json the result follows on standard output when the shell ends.

With a terminal, the detach keys leave the shell running, and so does a closed
terminal; "cloche attach" reconnects and shows its screen. A shell that ends
leaves no record.`,
		Example:           "  cloche shell build\n  echo 'ls -l' | cloche shell build\n  cloche shell --detach-keys ctrl-],q build",
		GroupID:           command.GroupRun,
		Args:              command.Exactly(1, "one sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			detach, err := command.ParseDetachKeys(keys)
			if err != nil {
				return err
			}
			naming, err := who.Naming()
			if err != nil {
				return err
			}
			_, in := command.TerminalOf(a.Stdio.In)
			_, out := command.TerminalOf(a.Stdio.Out)
			attached := !in || !out || a.JSON
			var stdin api.Bytes
			if a.JSON {
				// It can be read once, and there may be two attempts.
				if stdin, err = CollectStdin(a, command.ExecFlags{Interactive: true}); err != nil {
					return err
				}
			}
			return eachShell(args[0], func(argv []string) error {
				req := api.ExecRequest{Naming: naming, Argv: argv, Stdin: stdin}
				if attached {
					return runExec(c.Context(), a, args[0], req, command.ExecFlags{Interactive: true})
				}
				command.GiveTerminal(a, &req)
				return shell(c.Context(), a, args[0], req, detach)
			})
		},
	}
	c.Flags().StringVar(&keys, "detach-keys", command.DefaultDetachKeys, "keys that detach and leave the shell running; '' for no keys")
	who.Register(c.Flags())
	return c
}

// eachShell calls do with ways to start a shell until one is there. The first
// finds bash by itself; a sandbox may have bash and no sh.
func eachShell(sandbox string, do func(argv []string) error) error {
	for _, argv := range [][]string{{"sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}, {"bash"}} {
		if err := do(argv); api.CodeOf(err) != api.CodeCommandNotFound {
			return err
		}
	}
	return api.Errorf(api.CodeCommandNotFound, "sandbox %q has no shell: neither bash nor sh is in it", terminal.Clip(sandbox)).
		WithHint("run its programs with: cloche exec %s -- PROGRAM", terminal.Clip(sandbox))
}

// shell starts a managed shell and joins it.
func shell(ctx context.Context, a *command.CLI, sandbox string, req api.ExecRequest, keys []byte) error {
	fallBack := false
	err := command.WithProcessSession(ctx, a, func(ctx context.Context, j *command.ProcessSession) error {
		// A repeated start finds the process of a first one whose answer was lost.
		req.ExecID = api.NewID(command.ShellName + "-")
		sandbox, err := j.Conn.Named(ctx, sandbox, req.Naming)
		if err != nil {
			return err
		}
		start := req
		start.NameTemplate = "" // has named it
		p, err := j.Conn.StartProcess(ctx, sandbox, api.ProcessSpec{ExecRequest: start, Name: command.ShellName, OpenStdin: true})
		if err != nil {
			fallBack = api.CodeOf(err) == api.CodeUnsupported
			return err
		}
		j.Ref, j.Tidy = command.ProcessRef{Sandbox: sandbox, Process: p.ExecID}, true
		begin := int64(0)
		p.StdinOpen = true
		return j.Open(ctx, p, command.AttachFlags{Since: &begin, Keys: keys})
	})
	if fallBack {
		a.Warn("%s: the shell will not outlive this program", command.AsError(err).Message)
		req.ExecID = ""
		return runExec(ctx, a, sandbox, req, command.ExecFlags{Interactive: true, Tty: true})
	}
	return err
}

package process

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/network"
)

// ExecCommand is "cloche exec".
func ExecCommand(a *command.CLI) *cobra.Command {
	var at command.ExecFlags
	var env, envFiles, waits []string
	var detach bool
	var cwd, user, timeout, phase string
	var chars command.CharsFlag
	var cancel bool
	var who command.NamingFlags
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- COMMAND [ARG...]",
		Short: "Run a command in a running sandbox",
		Long: `Run a command in a running sandbox. Input, output, signals and the exit status
are as with "cloche run". If this program dies, the command continues, and
"cloche logs" shows its output. With --cancel-with-caller the command and its
children are killed then.

SANDBOX is a name or an id. "-" is the sandbox of --identity, with the
operator's template or --name-template.

With --json the output is collected and the result written as JSON. Input is
then passed on only with -i.`,
		Example: `  cloche exec build -- make test
  cloche exec -i -t build -- bash
  cloche exec --env CI=1 --timeout 5m build -- ./run.sh
  cloche exec --cancel-with-caller build -- ./long-test.sh
  cloche exec --identity launcher_type=group --identity launcher_id=42 - -- ls`,
		GroupID:           command.GroupRun,
		Args:              command.ExecArgs,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			req := api.ExecRequest{Argv: command.CommandOf(args), Cwd: cwd, User: user, Phase: phase, CancelWithCaller: cancel}
			var err error
			if req.Env, err = EnvOf(envFiles, env, a.Env.Getenv); err != nil {
				return err
			}
			if req.Naming, err = who.Naming(); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") {
				ms, err := command.ParseTimeout("--timeout", "timeout_ms", timeout)
				if err != nil {
					return err
				}
				req.TimeoutMS = &ms
			}
			if err := command.CheckText("wait_endpoints", waits...); err != nil {
				return err
			}
			req.WaitEndpoints = waits
			if req.MaxOutputChars, err = chars.Value(c, a.JSON); err != nil {
				return err
			}
			if detach {
				if at.Tty {
					command.GiveTerminal(a, &req)
				}
				spec := api.ProcessSpec{ExecRequest: req, OpenStdin: at.Interactive}
				return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
					return start(ctx, a, conn, args[0], spec, false)
				})
			}
			return runExec(c.Context(), a, args[0], req, at)
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "`NAME=VALUE` for the command, or NAME to use its value from this environment (repeatable)")
	c.Flags().StringArrayVar(&waits, "wait-endpoint", nil, "wait until the endpoint of this `NAME` is ready (repeatable)")
	c.Flags().StringArrayVar(&envFiles, "env-file", nil, "a `FILE` with lines NAME=VALUE for the environment (repeatable)")
	c.Flags().BoolVarP(&detach, "detach", "d", false, "start the command as \"cloche start\" does, and print its id")
	c.Flags().StringVarP(&cwd, "cwd", "w", "", "the working directory inside (default the sandbox's)")
	c.Flags().StringVarP(&user, "user", "u", "", "the user inside, `NAME|UID[:GID]` (default the sandbox's)")
	c.Flags().StringVar(&timeout, "timeout", "", "kill the command after this `duration`, such as 90s; 0 is unlimited")
	c.Flags().StringVar(&phase, "phase", "", command.PhaseUsage)
	c.Flags().BoolVar(&cancel, "cancel-with-caller", false, "kill the command when this program or its connection ends")
	chars.Register(c.Flags())
	who.Register(c.Flags())
	at.Register(c.Flags())
	command.Workdir(c.Flags())
	return c
}

func runExec(ctx context.Context, a *command.CLI, ref string, req api.ExecRequest, f command.ExecFlags) error {
	ctx, t, err := a.Prepare(ctx, f, &req)
	if err != nil {
		return err
	}
	defer t.Release()
	conn, err := a.Daemon()
	if err != nil {
		return err
	}
	defer conn.Close()
	if a.JSON {
		if req.Stdin == nil {
			if req.Stdin, err = CollectStdin(a, f); err != nil {
				return err
			}
		}
		res, err := conn.Exec(ctx, ref, req)
		if err != nil {
			return err
		}
		if err := a.PrintJSON(res); err != nil {
			return err
		}
		return command.Finish(res)
	}
	stream, err := conn.ExecStream(ctx, ref, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	t.Starting()
	t.Stream, t.Stdin, t.Again = stream, a.WantStdin(f), "cloche egress allow "+command.ShellWord(ref)
	return RunResult(a, t, f.Quiet)
}

// CollectStdin returns the complete input of a command whose result is collected. It reads only on
// request, because an input that is never closed would block the command indefinitely.
func CollectStdin(a *command.CLI, f command.ExecFlags) (api.Bytes, error) {
	if !f.Interactive || a.Stdio.In == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdio.In, maxCollectedStdin+1))
	if err != nil {
		return nil, api.Invalid("stdin", "read standard input: %w", err)
	}
	if len(data) > maxCollectedStdin {
		return nil, api.Errorf(api.CodeTooLarge, "standard input is more than %s", command.FormatSize(maxCollectedStdin)).
			WithHint("leave --json out, which streams it, or mount a directory with the data")
	}
	return data, nil
}

// RunResult waits for a streamed command and reports how it ended.
func RunResult(a *command.CLI, t *command.ExecSession, quiet bool) error {
	res, err := t.Run()
	if err != nil {
		return err
	}
	if !quiet {
		a.WarnGranted(res.Adjusted, nil)
		command.Explain(a, res)
		network.TellRefusals(a, res, t.Again)
	}
	return command.Finish(res)
}

// maxCollectedStdin bounds the input of a command whose result is JSON.
const maxCollectedStdin = 16 << 20

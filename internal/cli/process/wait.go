package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// WaitCommand is "cloche wait".
func WaitCommand(a *command.CLI) *cobra.Command {
	var ready bool
	var timeout string
	c := &cobra.Command{
		Use:   "wait [flags] SANDBOX PROCESS",
		Short: "Wait for the end of a process",
		Long: `Wait until a process has ended, and exit with its status: 128+n after signal n,
125 if its end wasn't observed, with the reason on standard error. With --ready
wait only until it is ready, with status 0; a process that ends before is an
error even with status 0.

After --timeout the status is 124. The process continues.`,
		Example:           "  cloche wait build worker\n  cloche wait --ready --timeout 30s build web && curl localhost:8000",
		GroupID:           command.GroupProcess,
		Args:              command.OneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(c *cobra.Command, args []string) error {
			w := api.WaitRequest{Ready: ready}
			if c.Flags().Changed("timeout") {
				ms, err := command.ParseTimeout("--timeout", "timeout_ms", timeout)
				if err != nil {
					return err
				}
				w.TimeoutMS = ms
			}
			return a.WithProcess(c, args, func(ctx context.Context, conn *command.Connection, ref command.ProcessRef, _ api.Process) error {
				p, err := conn.WaitProcess(ctx, ref.Sandbox, ref.Process, w)
				if err != nil {
					return err
				}
				if a.JSON {
					if err := a.PrintJSON(p); err != nil {
						return err
					}
				}
				return awaited(a, ref, p, ready)
			})
		},
	}
	c.Flags().BoolVar(&ready, "ready", false, "wait until it is ready, or has ended")
	c.Flags().StringVar(&timeout, "timeout", "", "wait at most this `duration`, such as 30s; 0 waits indefinitely")
	return c
}

// awaited says how a wait went, and gives the status that says the same.
func awaited(a *command.CLI, ref command.ProcessRef, p api.Process, ready bool) error {
	switch {
	case ready && p.State == api.ProcessReady:
		return nil
	case !p.State.Ended() && ready:
		a.Warn("process %s is not ready%s; it goes on", ref.Process, command.Because(p.Reason))
		return command.StatusError(command.ExitTimedOut)
	case !p.State.Ended():
		a.Warn("process %s is %s; it goes on", ref.Process, p.State)
		return command.StatusError(command.ExitTimedOut)
	}
	res := command.Outcome(p)
	explainProcess(a, ref, p)
	if ready && res.OK() {
		a.Warn("process %s ended with status 0 before it was ready", ref.Process)
		return command.StatusError(command.ExitFailed)
	}
	return command.Finish(res)
}

// explainProcess says on standard error what the exit status alone would not.
func explainProcess(a *command.CLI, ref command.ProcessRef, p api.Process) {
	id := ref.Process
	switch {
	case p.TimedOut:
		a.Warn("process %s ran into its timeout and was killed", id)
	case p.OOM:
		a.Warn("process %s was killed: out of memory", id)
	case p.ExitCode == nil && p.Signal == "" && p.State == api.ProcessFailed:
		a.Warn("process %s failed%s", id, command.Because(p.Reason))
	case p.ExitCode == nil && p.Signal == "":
		a.Warn("how process %s ended is not known%s", id, command.Because(p.Reason))
	case p.State == api.ProcessFailed && p.Reason != "":
		a.Warn("process %s: %s", id, p.Reason)
	}
}

// orEmpty is err, or what says that there is nothing where something must be.
func orEmpty(err error) error {
	if err == nil {
		return errors.New("it is empty")
	}
	return fmt.Errorf("%w", err)
}

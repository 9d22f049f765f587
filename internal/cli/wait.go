package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
)

func waitCommand(a *app) *cobra.Command {
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
		GroupID:           groupProcess,
		Args:              oneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.completeProcess,
		RunE: func(c *cobra.Command, args []string) error {
			w := api.WaitRequest{Ready: ready}
			if c.Flags().Changed("timeout") {
				ms, err := parseTimeout("--timeout", "timeout_ms", timeout)
				if err != nil {
					return err
				}
				w.TimeoutMS = ms
			}
			return a.withProcess(c, args, func(ctx context.Context, conn *connection, ref processRef, _ api.Process) error {
				p, err := conn.WaitProcess(ctx, ref.sandbox, ref.process, w)
				if err != nil {
					return err
				}
				if a.json {
					if err := a.printJSON(p); err != nil {
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
func awaited(a *app, ref processRef, p api.Process, ready bool) error {
	switch {
	case ready && p.State == api.ProcessReady:
		return nil
	case !p.State.Ended() && ready:
		a.warn("process %s is not ready%s; it goes on", ref.process, because(p.Reason))
		return statusError(exitTimedOut)
	case !p.State.Ended():
		a.warn("process %s is %s; it goes on", ref.process, p.State)
		return statusError(exitTimedOut)
	}
	res := outcome(p)
	explainProcess(a, ref, p)
	if ready && res.OK() {
		a.warn("process %s ended with status 0 before it was ready", ref.process)
		return statusError(exitFailed)
	}
	return finish(res)
}

// explainProcess says on standard error what the exit status alone would not.
func explainProcess(a *app, ref processRef, p api.Process) {
	id := ref.process
	switch {
	case p.TimedOut:
		a.warn("process %s ran into its timeout and was killed", id)
	case p.OOM:
		a.warn("process %s was killed: out of memory", id)
	case p.ExitCode == nil && p.Signal == "" && p.State == api.ProcessFailed:
		a.warn("process %s failed%s", id, because(p.Reason))
	case p.ExitCode == nil && p.Signal == "":
		a.warn("how process %s ended is not known%s", id, because(p.Reason))
	case p.State == api.ProcessFailed && p.Reason != "":
		a.warn("process %s: %s", id, p.Reason)
	}
}

// orEmpty is err, or what says that there is nothing where something must be.
func orEmpty(err error) error {
	if err == nil {
		return errors.New("it is empty")
	}
	return fmt.Errorf("%w", err)
}

package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// processRef is a process as it is named on the command line.
type processRef struct{ sandbox, process string }

func (r processRef) String() string { return r.sandbox + " " + r.process }

// processArg reads SANDBOX PROCESS or SANDBOX/PROCESS; the process is empty
// where none is named.
func processArg(args []string) processRef {
	r := processRef{sandbox: args[0]}
	if len(args) > 1 {
		r.process = args[1]
		return r
	}
	r.sandbox, r.process, _ = strings.Cut(args[0], "/")
	return r
}

// oneProcess is the argument rule of verbs that work on one process, with so
// many arguments behind it.
func oneProcess(behind int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		n := len(args) - behind
		if n == 2 && args[0] != "" && args[1] != "" {
			return nil
		}
		if n == 1 {
			if r := processArg(args[:1]); r.sandbox != "" && r.process != "" {
				return nil
			}
		}
		return api.Invalid("arguments", "%s: want %s", c.CommandPath(), what).
			WithHint(`"cloche ps SANDBOX" lists the processes; "%s --help" shows how`, c.CommandPath())
	}
}

// find returns the record of a process that is named by its id, or by a name
// that no other process of the sandbox has.
func (c *connection) find(ctx context.Context, r processRef) (api.Process, error) {
	p, err := c.Process(ctx, r.sandbox, r.process)
	if !errors.Is(err, api.ErrNotFound) {
		return p, err
	}
	list, lerr := c.Processes(ctx, r.sandbox)
	if lerr != nil {
		return p, err
	}
	named, lives := named(list, r.process)
	switch {
	case len(lives) == 1:
		return lives[0], nil
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return p, api.Invalid("process", "%d processes of sandbox %s have the name %q", len(named), terminal.Printable(r.sandbox), clip(r.process)).
			WithHint(`give an id, as "cloche ps --all %s" lists them`, terminal.Printable(r.sandbox))
	}
	return p, err
}

// named are the processes that have a name, and those of them that live.
func named(list []api.Process, name string) (all, lives []api.Process) {
	for _, p := range list {
		if p.Name != name {
			continue
		}
		all = append(all, p)
		if !p.State.Ended() {
			lives = append(lives, p)
		}
	}
	return all, lives
}

// withProcess does one thing to the process that the arguments name.
func (a *app) withProcess(c *cobra.Command, args []string, do func(context.Context, *connection, processRef, api.Process) error) error {
	return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
		ref := processArg(args)
		p, err := conn.find(ctx, ref)
		if err != nil {
			return err
		}
		ref.process = p.ExecID
		return do(ctx, conn, ref, p)
	})
}

// outcome is how a process ended, as the result of an exec says it.
func outcome(p api.Process) *api.Result {
	return &api.Result{ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut, OOM: p.OOM, Reason: p.Reason, ExecID: p.ExecID}
}

// completeProcess completes the name of a sandbox, then the id of a process.
func (a *app) completeProcess(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSandboxes(c, args, typed)
	}
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c, func(ctx context.Context, conn *connection) ([]string, error) {
		list, err := conn.Processes(ctx, args[0])
		var ids []string
		for _, p := range list {
			ids = append(ids, cobra.CompletionWithDesc(p.ExecID, terminal.Printable(clip(strings.Join(p.Argv, " ")))))
		}
		return ids, err
	})
}

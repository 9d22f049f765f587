package command

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// ProcessRef is a process as it is named on the command line.
type ProcessRef struct{ Sandbox, Process string }

// String is SANDBOX PROCESS.
func (r ProcessRef) String() string { return r.Sandbox + " " + r.Process }

// ProcessArg reads SANDBOX PROCESS or SANDBOX/PROCESS; the process is empty
// where none is named.
func ProcessArg(args []string) ProcessRef {
	r := ProcessRef{Sandbox: args[0]}
	if len(args) > 1 {
		r.Process = args[1]
		return r
	}
	r.Sandbox, r.Process, _ = strings.Cut(args[0], "/")
	return r
}

// OneProcess is the argument rule of verbs that work on one process, with so
// many arguments behind it.
func OneProcess(behind int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		n := len(args) - behind
		if n == 2 && args[0] != "" && args[1] != "" {
			return nil
		}
		if n == 1 {
			if r := ProcessArg(args[:1]); r.Sandbox != "" && r.Process != "" {
				return nil
			}
		}
		return api.Invalid("arguments", "%s: want %s", c.CommandPath(), what).
			WithHint(`"cloche ps SANDBOX" lists the processes; "%s --help" shows how`, c.CommandPath())
	}
}

// Find returns the record of a process that is named by its id, or by a name
// that no other process of the sandbox has.
func (c *Connection) Find(ctx context.Context, r ProcessRef) (api.Process, error) {
	p, err := c.Process(ctx, r.Sandbox, r.Process)
	if !errors.Is(err, api.ErrNotFound) {
		return p, err
	}
	list, lerr := c.Processes(ctx, r.Sandbox)
	if lerr != nil {
		return p, err
	}
	named, lives := named(list, r.Process)
	switch {
	case len(lives) == 1:
		return lives[0], nil
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return p, api.Invalid("process", "%d processes of sandbox %s have the name %q", len(named), terminal.Printable(r.Sandbox), terminal.Clip(r.Process)).
			WithHint(`give an id, as "cloche ps --all %s" lists them`, terminal.Printable(r.Sandbox))
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

// WithProcess does one thing to the process that the arguments name.
func (a *CLI) WithProcess(c *cobra.Command, args []string, do func(context.Context, *Connection, ProcessRef, api.Process) error) error {
	return a.WithDaemon(c, func(ctx context.Context, conn *Connection) error {
		ref := ProcessArg(args)
		p, err := conn.Find(ctx, ref)
		if err != nil {
			return err
		}
		ref.Process = p.ExecID
		return do(ctx, conn, ref, p)
	})
}

// Outcome is how a process ended, as the result of an exec says it.
func Outcome(p api.Process) *api.Result {
	return &api.Result{ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut, OOM: p.OOM, Reason: p.Reason, ExecID: p.ExecID}
}

// CompleteProcess completes the name of a sandbox, then the id of a process.
func (a *CLI) CompleteProcess(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.CompleteSandboxes(c, args, typed)
	}
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c, func(ctx context.Context, conn *Connection) ([]string, error) {
		list, err := conn.Processes(ctx, args[0])
		var ids []string
		for _, p := range list {
			ids = append(ids, cobra.CompletionWithDesc(p.ExecID, terminal.Printable(terminal.Clip(strings.Join(p.Argv, " ")))))
		}
		return ids, err
	})
}

package process

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// signalled is the JSON result of signal.
type signalled struct {
	Sandbox string `json:"sandbox"`
	Process string `json:"process"`
	Signal  string `json:"signal"`
}

// SignalCommand is "cloche signal".
func SignalCommand(a *command.CLI) *cobra.Command {
	var scope string
	c := &cobra.Command{
		Use:   "signal [flags] SANDBOX PROCESS SIGNAL",
		Short: "Send a signal to a process",
		Long: `Send a signal, such as TERM, SIGHUP or 9, to a process and all its children,
with detached ones. --scope group is its process group, or the foreground group
of its terminal; --scope process is the process alone.

A signal that ends a process (TERM, KILL, INT, QUIT, HUP) also ends its restart
policy. A signal to a process that has ended is an error.`,
		Example:           "  cloche signal build worker TERM\n  cloche signal --scope process build web HUP",
		GroupID:           command.GroupProcess,
		Args:              command.OneProcess(1, "SANDBOX PROCESS SIGNAL"),
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(c *cobra.Command, args []string) error {
			name, err := parseSignal(args[len(args)-1])
			if err != nil {
				return err
			}
			r := api.SignalRequest{Signal: name, Scope: api.SignalScope(scope)}
			switch r.Scope {
			case "", api.ScopeTree, api.ScopeGroup, api.ScopeProcess:
			default:
				return api.Invalid("scope", "--scope %q is not a scope", terminal.Clip(scope)).WithHint("give tree, group or process")
			}
			return a.WithProcess(c, args[:len(args)-1], func(ctx context.Context, conn *command.Connection, ref command.ProcessRef, _ api.Process) error {
				if err := conn.SignalProcess(ctx, ref.Sandbox, ref.Process, r); err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(signalled{ref.Sandbox, ref.Process, name})
				}
				fmt.Fprintln(a.Stdio.Out, terminal.Printable(ref.Process))
				return nil
			})
		},
	}
	c.Flags().StringVar(&scope, "scope", "", "which processes get it: `tree|group|process` (default tree)")
	return c
}

// parseSignal reads a name with or without SIG, in any case, or a number.
func parseSignal(s string) (string, error) {
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n, err := strconv.Atoi(s); err == nil {
		name = api.SignalName(n)
	}
	if api.SignalNumber(name) == 0 {
		return "", api.Invalid("signal", "%q is not a signal", terminal.Clip(s)).WithHint("give a name such as TERM, KILL, HUP or USR1, or its number")
	}
	return name, nil
}

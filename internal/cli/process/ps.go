package process

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// recentlyEnded is how many processes that have ended ps shows without --all.
const recentlyEnded = 10

// PsCommand is "cloche ps".
func PsCommand(a *command.CLI) *cobra.Command {
	var all, quiet bool
	c := &cobra.Command{
		Use:   "ps [SANDBOX]",
		Short: "List the processes of a sandbox, or the sandboxes",
		Long: `List the processes of a sandbox in the order of their start: managed ones, and
the commands of execs. Of the ended processes the last ten are shown, with --all
all that are on record.

STATE is the current state. starting: it runs and isn't ready yet; backoff: it
ended and will be restarted; failed: it reached its maximum number of restarts,
or could not be executed; unknown: its end wasn't observed. LAST-STDERR is the
last line of its error output, or of its output if it has a terminal. On a
terminal the last columns are cut to fit.

Without SANDBOX it lists the sandboxes, as "cloche ls" does.`,
		Example: "  cloche ps build\n  cloche ps --all --json build\n  cloche ps -q build",
		GroupID: command.GroupProcess,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && c.Name() == "ps" {
				return nil
			}
			return command.Exactly(1, "one sandbox")(c, args)
		},
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if len(args) == 0 {
					o := api.ListOptions{Limit: command.MaxListPage}
					o.States, _ = command.ParseStates(nil, all) // no name that could be wrong
					return command.List(ctx, a, conn, o, quiet)
				}
				list, err := conn.Processes(ctx, args[0])
				if err != nil {
					return err
				}
				return listProcesses(a, list, all, quiet)
			})
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "all ended processes, not only the last ten")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return c
}

func listProcesses(a *command.CLI, all []api.Process, every, quiet bool) error {
	list := all
	if !every {
		list = withoutOld(all, recentlyEnded)
	}
	switch {
	case a.JSON:
		return a.PrintJSON(api.ProcessList{Processes: append([]api.Process{}, list...)})
	case quiet:
		for _, p := range list {
			fmt.Fprintln(a.Stdio.Out, terminal.Printable(p.ExecID))
		}
		return nil
	}
	header := []string{"ID", "NAME", "STATE", "PID", "AGE", "RESTARTS", "EXIT", "COMMAND", "LAST-STDERR"}
	var rows [][]string
	for _, p := range list {
		rows = append(rows, processRow(p, time.Now()))
	}
	if f, ok := command.TerminalOf(a.Stdio.Out); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			fit(header, rows, width)
		}
	}
	if err := command.WriteTable(a.Stdio.Out, header, rows); err != nil {
		return command.OutputError(err)
	}
	if hidden := len(all) - len(list); hidden > 0 && a.ShowProgress() {
		a.Warn("%d more have ended; --all shows them", hidden)
	}
	return nil
}

// withoutOld leaves out all that have ended but the last few.
func withoutOld(list []api.Process, few int) []api.Process {
	ended := 0
	for _, p := range list {
		if p.State.Ended() {
			ended++
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(p api.Process) bool {
		if !p.State.Ended() {
			return false
		}
		ended--
		return ended >= few
	})
}

func processRow(p api.Process, now time.Time) []string {
	age, pid := "-", "-"
	if !p.StartedAt.IsZero() {
		age = command.FormatAge(now.Sub(p.StartedAt))
	}
	if p.PID > 0 {
		pid = strconv.Itoa(p.PID)
	}
	name := p.Name
	if name == "" {
		name = "-"
	}
	last := p.LastStderr
	if last == "" && p.State.Ended() {
		last = p.Reason
	}
	return []string{
		p.ExecID, name, string(p.State), pid, age, strconv.Itoa(p.Restarts), command.ExitColumn(p),
		terminal.Clip(strings.Join(p.Argv, " ")), last,
	}
}

// narrowest is what is left of a column that is cut.
const narrowest = 12

// fit cuts the last two columns so that a row is one line of a terminal, as far
// as that is possible.
func fit(header []string, rows [][]string, width int) {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	over := 2*(len(widths)-1) - width
	for _, w := range widths {
		over += w
	}
	for i := len(widths) - 1; i >= len(widths)-2; i-- {
		if over <= 0 {
			return
		}
		cut := min(over, max(0, widths[i]-narrowest))
		over -= cut
		for _, row := range rows {
			row[i] = command.Shorten(row[i], widths[i]-cut)
		}
	}
}

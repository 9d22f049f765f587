package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// DoctorCommand is "cloche doctor".
func DoctorCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, and say how to fix problems",
		Long: `Check what each engine needs, and say what is missing and how to fix it. The
last lines are a verdict for each engine. It asks a running daemon, and
otherwise checks itself.

Exit status: 0 a sandbox can be created now, 1 not.`,
		Example: "  cloche doctor\n  cloche doctor --json",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := command.Interruptible(c.Context())
			defer cancel()
			p := command.StartProgress(a.Stdio.Err, a.ShowProgress(), "examining this machine")
			defer p.Stop()
			conn, err := a.DaemonOrInProcess(ctx, false)
			if err != nil {
				return err
			}
			defer conn.Close()
			d, err := conn.Doctor(ctx)
			if err != nil {
				return err
			}
			st, err := conn.Status(ctx)
			if err != nil {
				return err
			}
			p.Stop()
			if err := printDoctor(a, d, st); err != nil {
				return err
			}
			if !st.Available {
				return command.StatusError(1)
			}
			return nil
		},
	}
}

func printDoctor(a *command.CLI, d api.Doctor, st api.Status) error {
	if a.JSON {
		return a.PrintJSON(d)
	}
	out := a.Stdio.Out
	fmt.Fprintf(out, "cloche %s\n", terminal.Printable(d.Version))
	printFacts(a, "", d.Host)
	for _, e := range d.Engines {
		fmt.Fprintf(out, "\nengine %s, tier %s\n", terminal.Printable(e.Name), terminal.Printable(string(e.Tier)))
		printFacts(a, "  ", e.Facts)
		// What holds in an engine that starts nothing is no news.
		if e.Usable {
			printLimits(a, e.Enforces)
		}
		for _, p := range e.Problems {
			if err := command.PrintLines(a, problemLines("  ", p)); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out)
	for _, p := range d.Problems {
		if err := command.PrintLines(a, problemLines("", p)); err != nil {
			return err
		}
	}
	if !st.Enabled {
		fmt.Fprintln(out, "disabled: the operator's rules switch sandboxes off")
	}
	for _, e := range d.Engines {
		fmt.Fprintln(out, terminal.Printable(verdict(e)))
	}
	return nil
}

// printLimits prints what holds in one line, and what does not in a line for each reason.
func printLimits(a *command.CLI, limits map[string]api.Enforcement) {
	var held []string
	var missing []api.Unenforced
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if f := limits[name]; f.OK {
			held = append(held, name)
		} else {
			missing = append(missing, api.Unenforced{Field: name, Reason: f.Reason})
		}
	}
	if len(held) > 0 {
		fmt.Fprintf(a.Stdio.Out, "  enforced: %s\n", terminal.Printable(strings.Join(held, ", ")))
	}
	for fields, reason := range command.ByReason(missing) {
		fmt.Fprintf(a.Stdio.Out, "  not enforced: %s: %s\n", terminal.Printable(fields), terminal.Printable(reason))
	}
}

// verdict is the one line that sums an engine up; the first problem is what it fails of.
func verdict(e api.EngineReport) string {
	if e.Usable {
		return fmt.Sprintf("%s: usable", e.Name)
	}
	if len(e.Problems) == 0 {
		return fmt.Sprintf("%s: not usable: it does not say why", e.Name)
	}
	return fmt.Sprintf("%s: not usable: %s", e.Name, e.Problems[0].What)
}

func printFacts(a *command.CLI, indent string, facts map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(facts)) {
		fmt.Fprintf(a.Stdio.Out, "%s%s: %s\n", indent, terminal.Printable(k), terminal.Printable(facts[k]))
	}
}

package command

import (
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
)

// Workdir has --workdir mean --cwd.
func Workdir(flags *pflag.FlagSet) {
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "workdir" {
			name = "cwd"
		}
		return pflag.NormalizedName(name)
	})
}

// GiveTerminal asks for a terminal like the one here, where there is one.
func GiveTerminal(a *CLI, req *api.ExecRequest) {
	req.TTY, req.Rows, req.Cols = true, 24, 80
	f, ok := TerminalOf(a.Stdio.Out)
	if !ok {
		return
	}
	if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && rows > 0 && cols > 0 {
		req.Rows, req.Cols = ClampSize(rows), ClampSize(cols)
	}
	PassTerm(a, req)
}

// PhaseUsage is of the flag that says what a process is for.
const PhaseUsage = "the phase of a job, such as `setup`, which selects the variables of endpoints (default run)"

// CharsFlag cuts the output of a result to what a model reads.
type CharsFlag struct{ n int64 }

// Register adds the flags.
func (f *CharsFlag) Register(flags *pflag.FlagSet) {
	flags.Int64Var(&f.n, "max-chars", 0, "with --json, cut the middle of each stream to `N` characters, for a model; "+strconv.Itoa(api.DefaultOutputChars)+" is usual (default no cut)")
}

// Value is the flag's, nil where it was not given.
func (f *CharsFlag) Value(c *cobra.Command, json bool) (*int64, error) {
	switch {
	case !c.Flags().Changed("max-chars"):
		return nil, nil
	case !json:
		return nil, api.Invalid("max_output_chars", "--max-chars is for results, and this output is passed on as it is written").WithHint("add --json")
	case f.n < 0:
		return nil, api.Invalid("max_output_chars", "--max-chars is %d", f.n).WithHint("0 or more")
	}
	return &f.n, nil
}

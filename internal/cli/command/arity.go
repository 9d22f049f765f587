package command

import (
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// AtLeast is the argument rule of verbs that take several.
func AtLeast(n int, what string) cobra.PositionalArgs {
	return Between(n, math.MaxInt, what)
}

// Between is the argument rule of verbs that take from n to most.
func Between(n, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n || len(args) > most {
			return api.Invalid("arguments", "%s: %s, want %s", c.CommandPath(), Counted(len(args), "argument"), what).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
}

// AtMostOne is the argument rule of a verb that may be told a sandbox.
func AtMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return api.Invalid("arguments", "%s: %s, want one sandbox or none", c.CommandPath(), Counted(len(args), "argument")).WithHint(`"%s --help" shows how`, c.CommandPath())
	}
	return nil
}

// CommandOf is the command after the name of a sandbox, without "--".
func CommandOf(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// StartArgs checks SANDBOX alone, or as ExecArgs does.
func StartArgs(c *cobra.Command, args []string) error {
	if len(args) == 1 {
		return Names(c, args)
	}
	return ExecArgs(c, args)
}

// ExecArgs checks SANDBOX [--] COMMAND…: flags stand before the sandbox, since
// everything behind it is the command's.
func ExecArgs(c *cobra.Command, args []string) error {
	if err := Names(c, args); err != nil {
		return err
	}
	if len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-") {
		return api.Invalid("flags", "%s: %s stands behind the sandbox", c.CommandPath(), terminal.Clip(args[1])).
			WithHint("flags go before %s, and the command after --", terminal.Clip(args[0]))
	}
	return CheckArgv(CommandOf(args))
}

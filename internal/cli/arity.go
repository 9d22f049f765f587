package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// atLeast is the argument rule of verbs that take several.
func atLeast(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return api.Invalid("arguments", "%s: %s, want %s", c.CommandPath(), command.Counted(len(args), "argument"), what).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
}

// atMostOne is the argument rule of a verb that may be told a sandbox.
func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return api.Invalid("arguments", "%s: %s, want one sandbox or none", c.CommandPath(), command.Counted(len(args), "argument")).WithHint(`"%s --help" shows how`, c.CommandPath())
	}
	return nil
}

func commandOf(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// execArgs checks SANDBOX [--] COMMAND…: flags stand before the sandbox, since
// everything behind it is the command's.
func execArgs(c *cobra.Command, args []string) error {
	if err := command.Names(c, args); err != nil {
		return err
	}
	if len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-") {
		return api.Invalid("flags", "%s: %s stands behind the sandbox", c.CommandPath(), command.Clip(args[1])).
			WithHint("flags go before %s, and the command after --", command.Clip(args[0]))
	}
	return command.CheckArgv(commandOf(args))
}

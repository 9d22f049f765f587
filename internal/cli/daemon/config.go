package daemon

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// ConfigCommand is "cloche config".
func ConfigCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "Show the daemon's configuration",
		Long:    "See what a daemon is configured with, and where each value comes from.",
		Example: "  cloche config show",
		GroupID: command.GroupHost,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(configShowCommand(a))
	return c
}

func configShowCommand(a *command.CLI) *cobra.Command {
	var o command.ServeOptions
	c := &cobra.Command{
		Use:   "show",
		Short: "Print every setting with its value and source",
		Long: `Print the configuration of "cloche serve" with the same flags and environment:
each key, its value, and its source: a flag, the environment, a file or the
default. Then print the keys of the policy file that are set. It needs no
daemon. A token is shown as set or unset.

The environment variable of a key is CLOCHE__ and the key in capitals, with two
underscores for each dot: CLOCHE__LOG__LEVEL, CLOCHE__POLICY__MAX_SANDBOXES.
Lists have commas between their values, or are YAML.

Exit status: 0 the configuration is valid, 125 it isn't, and the error says why.`,
		Example: "  cloche config show\n  CLOCHE__POLICY__MAX_SANDBOXES=20 cloche config show --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			if a.Env.Config == nil {
				return api.Errorf(api.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("ask there")
			}
			o.Home = a.Home
			v, err := a.Env.Config(o)
			if err != nil {
				return err
			}
			return printConfig(a, v)
		},
	}
	registerServe(&o, c.Flags())
	return c
}

func printConfig(a *command.CLI, v command.ConfigView) error {
	if a.JSON {
		return a.PrintJSON(v)
	}
	for _, w := range v.Warnings {
		a.Warn("%s", w)
	}
	var rows [][]string
	for _, s := range v.Settings {
		text := fmt.Sprint(s.Value)
		if _, plain := s.Value.(string); !plain {
			if data, err := json.Marshal(s.Value); err == nil {
				text = string(data)
			}
		}
		rows = append(rows, []string{s.Key, strings.TrimSpace(text), s.Source})
	}
	if err := command.WriteTable(a.Stdio.Out, []string{"KEY", "VALUE", "SOURCE"}, rows); err != nil {
		return command.OutputError(err)
	}
	return nil
}

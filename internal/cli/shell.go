package cli

import (
	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

func (a *app) shellCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "shell SANDBOX",
		Short: "Open a shell in a sandbox that lives",
		Long: `Open bash, or sh where there is no bash, in a sandbox that lives: with a terminal
where this is one, and otherwise as a filter that reads commands from standard
input. With --json the result follows on standard output when the shell ends.`,
		Example:           "  cloche shell build\n  echo 'ls -l' | cloche shell build",
		GroupID:           groupRun,
		Args:              exactly(1, "one sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			_, in := terminal(a.stdio.In)
			_, out := terminal(a.stdio.Out)
			req := cloche.ExecRequest{Argv: []string{"/bin/sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}}
			if v := a.getenv("TERM"); v != "" && in && out {
				req.Env = map[string]string{"TERM": v}
			}
			return a.exec(c.Context(), args[0], req, attachFlags{interactive: true, tty: in && out && !a.json})
		},
	}
}

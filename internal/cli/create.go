package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

func (a *app) createCommand() *cobra.Command {
	var f specFlags
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a sandbox that stays",
		Long: `Make a sandbox and print its name. It lives in the daemon until "cloche stop",
"cloche kill" or "cloche rm". What policy changed or this machine cannot enforce
is said on standard error; "cloche inspect" shows it again.`,
		Example: `  cloche create --name build --workspace ./src
  cloche create --label team=research --memory 1GiB --json`,
		GroupID: groupRun,
		Args:    exactly(0, "none: the name goes with --name"),
		RunE: func(c *cobra.Command, _ []string) error {
			spec, err := f.spec(c.Flags().Changed, a.paths(), a.env.Getenv)
			if err != nil {
				return err
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error { return a.create(ctx, conn, spec) })
		},
	}
	f.register(c.Flags())
	return c
}

func (a *app) create(ctx context.Context, conn *connection, spec cloche.SandboxSpec) error {
	p := startProgress(a.stdio.Err, a.showProgress(), "creating")
	sb, err := conn.CreateProgress(ctx, spec, p.setStep)
	p.stop()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(sb.Sandbox)
	}
	a.warnGranted(sb.Adjusted, sb.Unenforced)
	fmt.Fprintln(a.stdio.Out, printable(sb.Name))
	return nil
}

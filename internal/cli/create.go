package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func (a *app) createCommand() *cobra.Command {
	var f specFlags
	var count int
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a sandbox that stays",
		Long: `Make a sandbox and print its name. It lives in the daemon until "cloche stop",
"cloche kill" or "cloche rm". What policy changed or this machine cannot enforce
is said on standard error; "cloche inspect" shows it again.

With --idempotency-key a create can be repeated until it is answered: all with one
key get the same sandbox. With --count it makes many, each for itself: those that
could not be made are told on standard error, and the status is that of the first.`,
		Example: `  cloche create --name build --workspace ./src
  cloche create --label team=research --memory 1GiB --json
  cloche create --idempotency-key rollout-17
  cloche create --count 16 --label run=42`,
		GroupID: groupRun,
		Args:    exactly(0, "none: the name goes with --name"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("count") {
				if count < 1 || count > api.MaxBatchCreate {
					return api.Invalid("count", "--count %d", count).WithHint("1 to %d", api.MaxBatchCreate)
				}
				return a.withSpec(c, &f, func(ctx context.Context, conn *connection, spec api.SandboxSpec) error {
					return a.createMany(ctx, conn, spec, count)
				})
			}
			return a.withSpec(c, &f, a.create)
		},
	}
	f.register(c.Flags())
	c.Flags().StringVar(&f.key, "idempotency-key", "", "a `KEY` of the caller's for this creation: repeated with it, it returns the same sandbox")
	c.Flags().IntVar(&count, "count", 1, "make so many, with -2 and so on after their names and keys, a `NUMBER`")
	return c
}

func (a *app) create(ctx context.Context, conn *connection, spec api.SandboxSpec) error {
	v := a.watchCreate("creating", false)
	sb, err := conn.CreateProgress(client.WithPullProgress(ctx, v.pulling), spec, v.step)
	v.stop()
	if err != nil {
		return err
	}
	return a.announceSandbox(sb.Sandbox)
}

// createMany makes many in one call.
func (a *app) createMany(ctx context.Context, conn *connection, spec api.SandboxSpec, count int) error {
	p := startProgress(a.stdio.Err, a.showProgress(), fmt.Sprintf("creating %d sandboxes", count))
	res, err := conn.CreateMany(ctx, api.BatchCreate{Specs: []api.SandboxSpec{spec}, Count: count})
	p.stop()
	if err != nil {
		return err
	}
	for _, sb := range res.Succeeded {
		if err := a.announceSandbox(sb); err != nil {
			return err
		}
	}
	for _, f := range res.Failed[min(1, len(res.Failed)):] {
		printError(a.stdio.Err, f.Error, a.json)
	}
	if len(res.Failed) > 0 {
		return res.Failed[0].Error
	}
	return nil
}

// withSpec does one thing with the sandbox that the flags describe.
func (a *app) withSpec(c *cobra.Command, f *specFlags, do func(context.Context, *connection, api.SandboxSpec) error) error {
	spec, err := f.spec(c.Flags().Changed, a.paths(), a.env.Getenv)
	if err != nil {
		return err
	}
	return a.withDaemon(c, func(ctx context.Context, conn *connection) error { return do(ctx, conn, spec) })
}

// announceSandbox says what was made.
func (a *app) announceSandbox(sb api.Sandbox) error {
	if a.json {
		return a.printJSON(sb)
	}
	a.warnGranted(sb.Adjusted, sb.Unenforced)
	if _, err := fmt.Fprintln(a.stdio.Out, printable(sb.Name)); err != nil {
		return outputError(err)
	}
	return nil
}

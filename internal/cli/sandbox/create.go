package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// CreateCommand is "cloche create".
func CreateCommand(a *command.CLI) *cobra.Command {
	var f SpecFlags
	var count int
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox",
		Long: `Create a sandbox and print its name. It runs in the daemon until "cloche stop",
"cloche kill" or "cloche rm". Changes by the policy and limits that this machine
can't enforce are printed on standard error; "cloche inspect" shows them too.

With --idempotency-key you can repeat a create until it is answered: all creates
with one key return the same sandbox. --count creates several, independently:
failed ones are reported on standard error, and the exit status is the first
failure's.`,
		Example: `  cloche create --name build --workspace ./src
  cloche create --label team=research --memory 1GiB --json
  cloche create --idempotency-key rollout-17
  cloche create --name web -p 8000
  cloche create --count 16 --label run=42`,
		GroupID: command.GroupRun,
		Args:    command.Exactly(0, "none: the name goes with --name"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("count") {
				if count < 1 || count > api.MaxBatchCreate {
					return api.Invalid("count", "--count %d", count).WithHint("1 to %d", api.MaxBatchCreate)
				}
				if len(f.docker.publish) > 0 {
					return api.Invalid("publish", "-p and --count").WithHint("open the ports of each sandbox with `cloche port open`")
				}
				return withSpec(a, c, &f, func(ctx context.Context, conn *command.Connection, spec api.SandboxSpec) error {
					return createMany(ctx, a, conn, spec, count)
				})
			}
			ports, err := f.docker.ports()
			if err != nil {
				return err
			}
			return withSpec(a, c, &f, func(ctx context.Context, conn *command.Connection, spec api.SandboxSpec) error {
				return create(ctx, a, conn, spec, ports)
			})
		},
	}
	f.registerPorts(c.Flags())
	c.Flags().StringVar(&f.key, "idempotency-key", "", "your `KEY` for this create: a create with the same key returns the same sandbox")
	c.Flags().IntVar(&count, "count", 1, "create this `NUMBER`, with -2 and so on after their names and keys")
	return c
}

func create(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.SandboxSpec, ports []int) error {
	v := image.WatchCreate(a, "creating", false)
	sb, err := conn.CreateProgress(client.WithPullProgress(ctx, v.Pulling), spec, v.Step)
	v.Stop()
	if err != nil {
		return err
	}
	opened, err := openPorts(ctx, conn, sb.ID, ports)
	if err != nil && spec.IdempotencyKey == "" {
		_, rerr := conn.Delete(context.WithoutCancel(ctx), sb.ID)
		return errors.Join(err, rerr)
	}
	if err != nil {
		return err
	}
	if a.JSON && len(opened) > 0 {
		return a.PrintJSON(struct {
			api.Sandbox
			Ports []api.OpenedPort `json:"ports"`
		}{sb.Sandbox, opened})
	}
	if err := announceSandbox(a, sb.Sandbox); err != nil {
		return err
	}
	announcePorts(a, opened)
	return nil
}

// createMany makes many in one call.
func createMany(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.SandboxSpec, count int) error {
	p := command.StartProgress(a.Stdio.Err, a.ShowProgress(), fmt.Sprintf("creating %d sandboxes", count))
	res, err := conn.CreateMany(ctx, api.BatchCreate{Specs: []api.SandboxSpec{spec}, Count: count})
	p.Stop()
	if err != nil {
		return err
	}
	return announceMany(a, res)
}

// announceMany says what was made, and what was not. It returns the first failure.
func announceMany(a *command.CLI, res api.BatchResult) error {
	for _, sb := range res.Succeeded {
		if err := announceSandbox(a, sb); err != nil {
			return err
		}
	}
	for _, f := range res.Failed[min(1, len(res.Failed)):] {
		command.PrintError(a.Stdio.Err, f.Error, a.JSON)
	}
	if len(res.Failed) > 0 {
		return res.Failed[0].Error
	}
	return nil
}

// withSpec does one thing with the sandbox that the flags describe.
func withSpec(a *command.CLI, c *cobra.Command, f *SpecFlags, do func(context.Context, *command.Connection, api.SandboxSpec) error) error {
	spec, err := f.Spec(c.Flags().Changed, a.Paths(), a.Env.Getenv)
	if err != nil {
		return err
	}
	return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return do(ctx, conn, spec) })
}

// announceSandbox says what was made.
func announceSandbox(a *command.CLI, sb api.Sandbox) error {
	if a.JSON {
		return a.PrintJSON(sb)
	}
	a.WarnGranted(sb.Adjusted, sb.Unenforced)
	if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(sb.Name)); err != nil {
		return command.OutputError(err)
	}
	return nil
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// RmCommand is "cloche rm".
func RmCommand(a *command.CLI) *cobra.Command {
	var force bool
	var labels []string
	var key string
	c := &cobra.Command{
		Use:     "rm [SANDBOX[/PROCESS]...]",
		Aliases: []string{"delete", "remove"},
		Short:   "Remove sandboxes with their logs and private workspaces",
		Long: `Remove ended sandboxes with their records, logs and private workspaces. Named
workspaces and directories of the host stay. SANDBOX/PROCESS is one process of a
sandbox, with its record and log. With --force, running sandboxes are killed
first, and a missing one is no error.

The daemon retries a failed removal until it succeeds: "cloche ls" shows the
sandbox as deleting, "cloche inspect" what is left, and another "cloche rm -f"
retries at once.

--idempotency-key removes the sandbox of a create with that key, or prevents it:
a create that arrives within 24 hours after its delete creates nothing.`,
		Example:           "  cloche rm build\n  cloche rm -f --label run=42\n  cloche rm -f --idempotency-key rollout-17\n  cloche rm build/worker",
		GroupID:           command.GroupRun,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			want, err := command.ParseLabels("--label", labels)
			if err != nil {
				return err
			}
			if key != "" && !force {
				return api.Invalid("idempotency_key", "--idempotency-key removes what it names, running or not").WithHint("say so with --force")
			}
			if len(want) == 0 && key == "" {
				if err := command.Names(c, args); err != nil {
					return err
				}
				if len(args) == 1 || slices.ContainsFunc(args, func(s string) bool { return command.ProcessArg([]string{s}).Process != "" }) {
					return removeEach(c.Context(), a, args, force)
				}
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if len(args) == 2 && len(want) == 0 && key == "" {
					// SANDBOX PROCESS is not the sandbox, and then something else.
					if found, err := conn.Targets(ctx, args); err == nil && len(found) == 1 {
						r := found[0].Process
						if err := removeProcess(ctx, conn, r, force); err != nil {
							return err
						}
						return (&removal{a: a}).done(args[0] + "/" + args[1])
					}
				}
				return removeMany(ctx, a, conn, args, want, key, force)
			})
		},
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "kill running sandboxes; a missing one is no error")
	c.Flags().StringArrayVar(&labels, "label", nil, "all sandboxes with this label, `KEY=VALUE` (repeatable: all must match)")
	c.Flags().StringVar(&key, "idempotency-key", "", "the sandbox of a create with this `KEY` (needs --force)")
	return c
}

func removeEach(ctx context.Context, a *command.CLI, args []string, force bool) error {
	return a.Each(ctx, args, "removing", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
		if r := command.ProcessArg([]string{ref}); r.Process != "" {
			return command.Removed{Removed: ref}, removeProcess(ctx, conn, r, force)
		}
		return command.Removed{Removed: ref}, remove(ctx, conn, ref, force)
	})
}

// removal gathers what becomes of many: the first failure is the verb's result, and
// keeps nothing from the others.
type removal struct {
	a     *command.CLI
	first error
}

func (r *removal) failed(err error) {
	if r.first == nil {
		r.first = err
		return
	}
	command.PrintError(r.a.Stdio.Err, err, r.a.JSON)
}

func (r *removal) done(ref string) error {
	if r.a.JSON {
		return r.a.PrintJSON(command.Removed{Removed: ref})
	}
	if _, err := fmt.Fprintln(r.a.Stdio.Out, terminal.Printable(ref)); err != nil {
		return command.OutputError(err)
	}
	return nil
}

// removeMany removes in as few calls as it can.
func removeMany(ctx context.Context, a *command.CLI, conn *command.Connection, refs []string, labels map[string]string, key string, force bool) error {
	r := &removal{a: a}
	if len(labels) > 0 {
		for sb, err := range conn.ListAll(ctx, api.ListOptions{Labels: labels, Limit: api.MaxBatch}) {
			if err != nil {
				return err
			}
			refs = append(refs, sb.ID)
		}
	}
	p := command.StartProgress(a.Stdio.Err, a.ShowProgress(), fmt.Sprintf("removing %d sandboxes", len(refs)))
	defer p.Stop()
	for part := range slices.Chunk(refs, api.MaxBatch) {
		if !force {
			var err error
			if part, err = r.ended(ctx, conn, part); err != nil {
				return err
			}
		}
		if len(part) == 0 {
			continue
		}
		res, err := conn.RemoveMany(ctx, api.BatchSelect{IDs: part})
		if err != nil {
			return err
		}
		if err := r.report(part, res, force); err != nil {
			return err
		}
	}
	if key != "" {
		sb, err := conn.RemoveByKey(ctx, key)
		switch {
		case err != nil:
			r.failed(err)
		case sb.ID == "":
			return errors.Join(r.first, r.done(key))
		default:
			return errors.Join(r.first, r.done(sb.ID))
		}
	}
	return r.first
}

// ended are those of refs of which nothing runs; the others are failures.
func (r *removal) ended(ctx context.Context, conn *command.Connection, refs []string) ([]string, error) {
	res, err := conn.StatusMany(ctx, refs...)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, sb := range res.Succeeded {
		if command.Live(sb.State) {
			r.failed(stillLives(sb.Name, sb.State))
			continue
		}
		out = append(out, sb.ID)
	}
	for _, f := range res.Failed {
		r.failed(f.Error)
	}
	return out, nil
}

// report says what became of each.
func (r *removal) report(refs []string, res api.BatchResult, force bool) error {
	failed := map[string]error{}
	for _, f := range res.Failed {
		if !force || !errors.Is(f.Error, api.ErrNotFound) {
			failed[f.ID] = f.Error
		}
	}
	for _, ref := range refs {
		if err := failed[ref]; err != nil {
			r.failed(err)
		} else if err := r.done(ref); err != nil {
			return err
		}
	}
	return nil
}

func remove(ctx context.Context, conn *command.Connection, ref string, force bool) error {
	if force {
		if err := conn.Remove(ctx, ref); !errors.Is(err, api.ErrNotFound) {
			return err
		}
		return nil
	}
	sb, err := conn.Get(ctx, ref)
	if err != nil {
		return err
	}
	if command.Live(sb.State) {
		return stillLives(ref, sb.State)
	}
	return conn.Remove(ctx, sb.ID)
}

func stillLives(ref string, state api.State) error {
	return api.Errorf(api.CodeState, "sandbox %s is %s", ref, state).WithHint(`"cloche stop %s" first, or "cloche rm -f %s"`, ref, ref)
}

func removeProcess(ctx context.Context, conn *command.Connection, r command.ProcessRef, force bool) error {
	p, err := conn.Find(ctx, r)
	switch {
	case force && errors.Is(err, api.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !force && !p.State.Ended():
		return api.Errorf(api.CodeState, "process %s is %s", r.Process, p.State).
			WithHint(`"cloche signal %s TERM" first, or "cloche rm -f %s/%s"`, r, r.Sandbox, r.Process)
	}
	err = conn.RemoveProcess(ctx, r.Sandbox, p.ExecID)
	if force && errors.Is(err, api.ErrNotFound) {
		return nil
	}
	return err
}

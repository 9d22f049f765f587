package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// prunable selects the sandboxes that "cloche prune" removes.
type prunable struct {
	labels    map[string]string
	suspended bool
	before    time.Time
}

// selects reports whether a sandbox has been in its state for long enough.
func (p prunable) selects(sb api.Sandbox) bool {
	since := sb.StoppedAt
	switch {
	case sb.State == api.StateSuspended:
		if since = sb.SuspendedAt; !p.suspended {
			return false
		}
	case sb.State == api.StateFailed:
		if since == nil {
			since = &sb.CreatedAt
		}
	case !sb.State.Over():
		return false
	}
	return since != nil && !since.After(p.before)
}

// PruneCommand is "cloche prune".
func PruneCommand(a *command.CLI) *cobra.Command {
	var p prunable
	var labels []string
	var older time.Duration
	var dryRun bool
	c := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove sandboxes that ended some time ago",
		Long: `Remove the sandboxes that ended at least --older ago, as "cloche rm" does: with
their records, logs, saved roots and private workspaces. With --suspended, those
that have been suspended for as long are removed too, with their saved memory.
Running and paused sandboxes, named workspaces and snapshots stay.`,
		Example: "  cloche prune --dry-run\n  cloche prune --older 72h --label ci\n  cloche prune --older 168h --suspended",
		GroupID: command.GroupRun,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if p.labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			if p.before, err = command.Before(older, time.Now()); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return prune(ctx, a, conn, p, dryRun) })
		},
	}
	c.Flags().DurationVar(&older, "older", 24*time.Hour, "only sandboxes that have been in their state for this `DURATION`; 0 selects all")
	c.Flags().BoolVar(&p.suspended, "suspended", false, "suspended sandboxes too")
	c.Flags().StringArrayVar(&labels, "label", nil, "only sandboxes with this label, `KEY=VALUE` (repeatable: all must match)")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	return c
}

func prune(ctx context.Context, a *command.CLI, conn *command.Connection, p prunable, dryRun bool) error {
	var found []api.Sandbox
	for sb, err := range conn.ListAll(ctx, api.ListOptions{Labels: p.labels, Limit: api.MaxBatch}) {
		if err != nil {
			return err
		}
		if p.selects(sb) {
			found = append(found, sb)
		}
	}
	if dryRun {
		for _, sb := range found {
			if err := (&removal{a: a}).done(sb.Name); err != nil {
				return err
			}
		}
		return nil
	}
	shown := command.StartProgress(a.Stdio.Err, a.ShowProgress(), fmt.Sprintf("removing %d sandboxes", len(found)))
	defer shown.Stop()
	r := &removal{a: a}
	for _, sb := range found {
		// One that was started or resumed since the list is in use.
		now, err := conn.Get(ctx, sb.ID)
		if err == nil {
			if !p.selects(now.Sandbox) {
				a.Note("sandbox %s is in use again", terminal.Printable(sb.Name))
				continue
			}
			err = conn.Remove(ctx, sb.ID)
		}
		if errors.Is(err, api.ErrNotFound) {
			continue
		}
		if err != nil {
			r.failed(err)
			continue
		}
		if err := r.done(sb.Name); err != nil {
			return err
		}
	}
	return r.first
}

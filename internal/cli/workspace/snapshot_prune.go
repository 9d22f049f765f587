package workspace

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

// prunable selects the snapshots that "cloche snapshot prune" removes.
type prunable struct {
	labels map[string]string
	memory bool
	before time.Time
}

func (p prunable) selects(s api.Snapshot) bool {
	for key, value := range p.labels {
		if got, ok := s.Labels[key]; !ok || got != value {
			return false
		}
	}
	return !s.CreatedAt.After(p.before) && (!p.memory || s.Scope == api.SnapshotMemory)
}

func snapshotPruneCommand(a *command.CLI) *cobra.Command {
	var p prunable
	var labels []string
	var older time.Duration
	var dryRun bool
	c := &cobra.Command{
		Use:   "prune --older DURATION [flags]",
		Short: "Remove old snapshots",
		Long: `Remove the snapshots that were created at least --older ago, and print how much
they occupied. A snapshot of which a sandbox is being made stays.`,
		Example: "  cloche snapshot prune --older 720h --dry-run\n  cloche snapshot prune --older 168h --memory\n  cloche snapshot prune --older 0 --label run=42",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if p.labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			if !c.Flags().Changed("older") {
				return api.Invalid("older", "--older says how old a snapshot is that is removed, and is missing").WithHint("--older 720h removes those that are older than 30 days")
			}
			if p.before, err = command.Before(older, time.Now()); err != nil {
				return err
			}
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				return pruneSnapshots(ctx, a, conn, p, dryRun)
			})
		},
	}
	c.Flags().DurationVar(&older, "older", 0, "only snapshots that were created at least this `DURATION` ago; 0 selects all")
	c.Flags().BoolVar(&p.memory, "memory", false, "only snapshots with memory")
	c.Flags().StringArrayVar(&labels, "label", nil, "only snapshots with this label, `KEY=VALUE` (repeatable: all must match)")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	return c
}

// pruneSnapshots removes what p selects. A failure does not keep it from the others.
func pruneSnapshots(ctx context.Context, a *command.CLI, conn *command.Connection, p prunable, dryRun bool) error {
	list, err := conn.Snapshots(ctx)
	if err != nil {
		return err
	}
	var freed int64
	var failed error
	for _, s := range list.Snapshots {
		if !p.selects(s) {
			continue
		}
		if !dryRun {
			err = conn.RemoveSnapshot(ctx, s.ID)
		}
		switch {
		case errors.Is(err, api.ErrNotFound):
			continue
		case err != nil && failed == nil:
			failed = err
			continue
		case err != nil:
			command.PrintError(a.Stdio.Err, err, a.JSON)
			continue
		}
		freed += s.SizeBytes
		if a.JSON {
			err = a.PrintJSON(command.Removed{Removed: s.ID})
		} else {
			_, err = fmt.Fprintf(a.Stdio.Out, "%s %s\n", s.ID, terminal.Printable(s.Name))
		}
		if err != nil {
			return command.OutputError(err)
		}
	}
	verb := "freed"
	if dryRun {
		verb = "would free"
	}
	if !a.JSON {
		if _, err := fmt.Fprintf(a.Stdio.Out, "%s %s\n", verb, command.FormatSize(freed)); err != nil {
			return command.OutputError(err)
		}
	}
	return failed
}

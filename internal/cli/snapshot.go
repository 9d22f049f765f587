package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Snapshots of the files of sandboxes",
		Long: `Snapshots of the files of sandboxes: what was changed in the root and a copy of
the workspace. "cloche run --snapshot" and "cloche create --snapshot" begin with
one, in a copy of their own. Mounts, /tmp, /dev/shm and processes are in none.`,
		Example: "  cloche snapshot create build --name deps\n  cloche run --snapshot deps -- make test",
		GroupID: groupRun,
		Args:    a.unknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand(), a.snapshotInspectCommand(), a.snapshotRemoveCommand())
	return c
}

func (a *app) snapshotCreateCommand() *cobra.Command {
	var req api.SnapshotRequest
	var scope string
	var labels []string
	c := &cobra.Command{
		Use:   "create [flags] SANDBOX",
		Short: "Make a snapshot of the files of a sandbox",
		Long: `Make a snapshot of the files of a sandbox, and print its name. The sandbox stands
still meanwhile, as one that is paused, so that all files are of one moment. Of a
sandbox that has ended only the workspace is left to be had.`,
		Example:           "  cloche snapshot create build\n  cloche snapshot create --name deps --scope workspace build",
		Args:              exactly(1, "one sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if req.Labels, err = parseLabels("--label", labels); err != nil {
				return err
			}
			req.Scope = api.SnapshotScope(scope)
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error { return a.makeSnapshot(ctx, conn, args[0], req) })
		},
	}
	c.Flags().StringVar(&req.Name, "name", "", "the snapshot's `NAME` (default its id)")
	c.Flags().StringVar(&scope, "scope", "", "what it holds: workspace, root or files, which is both (default files)")
	c.Flags().StringArrayVar(&labels, "label", nil, "`KEY=VALUE` to find it by (repeatable)")
	return c
}

func (a *app) makeSnapshot(ctx context.Context, conn *connection, ref string, req api.SnapshotRequest) error {
	p := startProgress(a.stdio.Err, a.showProgress(), "copying the files of "+ref)
	snap, err := conn.CreateSnapshot(ctx, ref, req)
	p.stop()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(snap)
	}
	if !snap.Consistent {
		a.warn("snapshot %s: the sandbox could not stand still, so its files may be of several moments", snap.Name)
	}
	for _, skip := range snap.Left {
		a.warn("snapshot %s leaves out %s: %s", snap.Name, printable(skip.Path), printable(skip.Reason))
	}
	_, err = fmt.Fprintln(a.stdio.Out, printable(snap.Name))
	return err
}

func (a *app) snapshotListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List snapshots",
		Long:    "List the snapshots, newest first. Where no daemon listens, those of the home.",
		Example: "  cloche snapshot ls\n  cloche snapshot ls --json",
		Args:    exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withImages(c, func(ctx context.Context, conn *connection) error {
				list, err := conn.Snapshots(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				var rows [][]string
				for _, s := range list.Snapshots {
					rows = append(rows, []string{s.ID, s.Name, string(s.Scope), formatSize(s.SizeBytes), s.Image, formatAge(time.Since(s.CreatedAt))})
				}
				return writeTable(a.stdio.Out, []string{"ID", "NAME", "SCOPE", "SIZE", "IMAGE", "AGE"}, rows)
			})
		},
	}
}

func (a *app) snapshotInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "inspect SNAPSHOT...",
		Short:   "Show everything that is on record about snapshots",
		Long:    "Show the record of each snapshot as JSON: of what it was made, what it holds, and\nwhat of the sandbox is not in it and why.",
		Example: "  cloche snapshot inspect deps",
		Args:    atLeast(1, "snapshots"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withImages(c, func(ctx context.Context, conn *connection) error {
				for _, ref := range args {
					snap, err := conn.GetSnapshot(ctx, ref)
					if err != nil {
						return err
					}
					if a.json {
						err = a.printJSON(snap)
					} else {
						err = a.encodeJSON(snap, "  ")
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func (a *app) snapshotRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm SNAPSHOT...",
		Short:   "Remove snapshots",
		Long:    "Remove snapshots. Sandboxes that began with one keep their copies of its files.",
		Example: "  cloche snapshot rm deps",
		Args:    atLeast(1, "snapshots"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withImages(c, func(ctx context.Context, conn *connection) error {
				for _, ref := range args {
					if err := conn.RemoveSnapshot(ctx, ref); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func (a *app) diffCommand() *cobra.Command {
	var root, summary bool
	c := &cobra.Command{
		Use:   "diff [flags] SANDBOX",
		Short: "Show which files a sandbox changed",
		Long: `Show which files a sandbox changed: A added, C changed, D removed, with the
present size and the path. A sandbox that was made with --layered shows its
workspace, running or not; with --root any sandbox that runs shows its root
filesystem, and stands still for that moment.`,
		Example:           "  cloche diff build\n  cloche diff --root --summary build",
		GroupID:           groupLook,
		Args:              exactly(1, "one sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			o := api.DiffOptions{Scope: api.DiffWorkspace, Limit: 10_000}
			if root {
				o.Scope = api.DiffRoot
			}
			if summary {
				o.Limit = 1
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error { return a.diff(ctx, conn, args[0], o, summary) })
		},
	}
	c.Flags().BoolVar(&root, "root", false, "the root filesystem, and not the workspace")
	c.Flags().BoolVar(&summary, "summary", false, "only how many there are")
	return c
}

func (a *app) diff(ctx context.Context, conn *connection, ref string, o api.DiffOptions, summary bool) error {
	letters := map[api.ChangeKind]string{api.ChangeAdded: "A", api.ChangeChanged: "C", api.ChangeRemoved: "D"}
	var all api.Diff
	for {
		d, err := conn.Diff(ctx, ref, o)
		if err != nil {
			return err
		}
		all = withChanges(d, all.Changes)
		if !a.json && !summary {
			for _, ch := range d.Changes {
				fmt.Fprintf(a.stdio.Out, "%s %10d %s\n", letters[ch.Kind], ch.Size, printable(slash(ch)))
			}
		}
		if d.Next == "" || summary {
			break
		}
		o.Cursor = d.Next
	}
	all.Next = ""
	if summary {
		all.Changes = []api.Change{}
	}
	switch {
	case a.json:
		return a.printJSON(all)
	case summary:
		return a.printCounts(all)
	}
	return nil
}

// withChanges is d with what came in the pages before it.
func withChanges(d api.Diff, before []api.Change) api.Diff {
	d.Changes = slices.Concat(before, d.Changes)
	return d
}

// slash is the path of a change, with a slash behind that of a directory.
func slash(ch api.Change) string {
	if ch.Type == api.TypeDir {
		return ch.Path + "/"
	}
	return ch.Path
}

func (a *app) printCounts(d api.Diff) error {
	_, err := fmt.Fprintf(a.stdio.Out, "%d added, %d changed, %d removed, %s\n", d.Added, d.Changed, d.Removed, formatSize(d.Bytes))
	return err
}

func (a *app) commitCommand() *cobra.Command {
	return a.settleCommand("commit", "Keep what a sandbox wrote to its layered workspace", `Make what a sandbox wrote to its workspace part of the workspace. The sandbox was
made with --layered and has ended; --stop ends it first. What was begun is
finished, also when the daemon dies.`, func(ctx context.Context, conn *connection, ref string) (api.Diff, error) {
		return conn.CommitWorkspace(ctx, ref)
	})
}

func (a *app) rollbackCommand() *cobra.Command {
	return a.settleCommand("rollback", "Forget what a sandbox wrote to its layered workspace", `Forget what a sandbox wrote to its workspace. The sandbox was made with --layered
and has ended; --stop ends it first. "cloche rm" forgets it as well.`, func(ctx context.Context, conn *connection, ref string) (api.Diff, error) {
		return conn.RollbackWorkspace(ctx, ref)
	})
}

func (a *app) settleCommand(verb, short, long string, do func(context.Context, *connection, string) (api.Diff, error)) *cobra.Command {
	var stop bool
	c := &cobra.Command{
		Use:     verb + " [flags] SANDBOX",
		Short:   short,
		Long:    long,
		Example: "  cloche " + verb + " --stop build",
		GroupID: groupRun,
		Args: func(c *cobra.Command, args []string) error {
			if verb == "commit" && len(args) == 2 {
				return api.Invalid("arguments", "cloche commit makes no image: it keeps what a sandbox wrote to its layered workspace").
					WithHint("`cloche snapshot create %s` keeps the files of a sandbox, for others to begin with", shellWord(args[0]))
			}
			return exactly(1, "one sandbox")(c, args)
		},
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				if stop {
					if _, err := conn.Stop(ctx, args[0], api.StopOptions{}); err != nil {
						return err
					}
				}
				d, err := do(ctx, conn, args[0])
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(d)
				}
				return a.printCounts(d)
			})
		},
	}
	c.Flags().BoolVar(&stop, "stop", false, "stop the sandbox first")
	return c
}

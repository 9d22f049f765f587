package workspace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// SnapshotCommand is "cloche snapshot", with more verbs.
func SnapshotCommand(a *command.CLI, more ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Manage snapshots of files and memory",
		Long: `A snapshot has the files of a sandbox: the changes in the root and a copy of the
workspace. "cloche run --snapshot" and "cloche create --snapshot" start from a
copy of it. Mounts aren't in it. /tmp, /dev/shm and processes are only in a
snapshot with memory: a sandbox that starts from that continues the processes.`,
		Example: "  cloche snapshot create build --name deps\n  cloche run --snapshot deps -- make test\n  cloche snapshot create server --memory --name ready",
		GroupID: command.GroupRun,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(snapshotCreateCommand(a), snapshotListCommand(a), snapshotInspectCommand(a), snapshotRemoveCommand(a), snapshotPruneCommand(a))
	c.AddCommand(more...)
	return c
}

func snapshotCreateCommand(a *command.CLI) *cobra.Command {
	var req api.SnapshotRequest
	var scope string
	var memory bool
	var labels []string
	c := &cobra.Command{
		Use:   "create [flags] SANDBOX",
		Short: "Create a snapshot of a sandbox's files, or of its memory too",
		Long: `Create a snapshot of a sandbox's files, and print its name. The sandbox is
paused meanwhile, so that all files are from one moment. For an ended sandbox
only the workspace is available.

With --memory the snapshot has the processes too, as a fork has: each sandbox
that starts from it continues them. A running sandbox is paused for that moment.
Engines that can't save memory, and sandboxes that "cloche fork" refuses, are
refused.`,
		Example:           "  cloche snapshot create build\n  cloche snapshot create --name deps --scope workspace build\n  cloche snapshot create --name ready --memory server",
		Args:              command.Exactly(1, "one sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if req.Labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			if memory && scope != "" && scope != string(api.SnapshotMemory) {
				return api.Invalid("scope", "--memory and --scope %s exclude each other", scope).WithHint("a snapshot with memory has all files")
			}
			if req.Scope = api.SnapshotScope(scope); memory {
				req.Scope = api.SnapshotMemory
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return CreateSnapshot(ctx, a, conn, args[0], req)
			})
		},
	}
	c.Flags().StringVar(&req.Name, "name", "", "the snapshot's `NAME` (default its id)")
	c.Flags().StringVar(&scope, "scope", "", "the content: workspace, root, files, which is both, or memory (default files)")
	c.Flags().BoolVar(&memory, "memory", false, "with the processes and their memory: the same as --scope memory")
	c.Flags().StringArrayVar(&labels, "label", nil, "`KEY=VALUE` to find it by (repeatable)")
	return c
}

// CreateSnapshot creates a snapshot of a sandbox, and prints its name and what was left out.
func CreateSnapshot(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, req api.SnapshotRequest) error {
	p := command.StartProgress(a.Stdio.Err, a.ShowProgress(), "making a snapshot of "+ref)
	snap, err := conn.CreateSnapshot(ctx, ref, req)
	p.Stop()
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(snap)
	}
	if !snap.Consistent {
		a.Warn("snapshot %s: the sandbox could not be paused, so its files may be from several moments", snap.Name)
	}
	for _, skip := range snap.Left {
		a.Warn("snapshot %s leaves out %s: %s", snap.Name, terminal.Printable(skip.Path), terminal.Printable(skip.Reason))
	}
	_, err = fmt.Fprintln(a.Stdio.Out, terminal.Printable(snap.Name))
	return err
}

func snapshotListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List snapshots",
		Long:    "List the snapshots, newest first. Without a daemon, those of the home.",
		Example: "  cloche snapshot ls\n  cloche snapshot ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Snapshots(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, s := range list.Snapshots {
					rows = append(rows, []string{s.ID, s.Name, string(s.Scope), command.FormatSize(s.SizeBytes), s.Image, command.FormatAge(time.Since(s.CreatedAt))})
				}
				return command.WriteTable(a.Stdio.Out, []string{"ID", "NAME", "SCOPE", "SIZE", "IMAGE", "AGE"}, rows)
			})
		},
	}
}

func snapshotInspectCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect SNAPSHOT...",
		Short: "Show the records of snapshots",
		Long: `Show the record of each snapshot as JSON: its source, its content, and what was
omitted and why.`,
		Example: "  cloche snapshot inspect deps",
		Args:    command.AtLeast(1, "snapshots"),
		RunE: func(c *cobra.Command, args []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				for _, ref := range args {
					snap, err := conn.GetSnapshot(ctx, ref)
					if err != nil {
						return err
					}
					if a.JSON {
						err = a.PrintJSON(snap)
					} else {
						err = a.EncodeJSON(snap, "  ")
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

func snapshotRemoveCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "rm SNAPSHOT...",
		Short: "Remove snapshots",
		Long: `Remove snapshots. Sandboxes that started from one keep their copies of its
files.`,
		Example: "  cloche snapshot rm deps",
		Args:    command.AtLeast(1, "snapshots"),
		RunE: func(c *cobra.Command, args []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
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

// DiffCommand is "cloche diff".
func DiffCommand(a *command.CLI) *cobra.Command {
	var root, summary bool
	c := &cobra.Command{
		Use:   "diff [flags] SANDBOX",
		Short: "Show which files a sandbox changed",
		Long: `Show which files a sandbox changed: A added, C changed, D removed, with size and
path. For a sandbox that was created with --layered this is its workspace,
running or not. With --root it is the root filesystem of a running sandbox,
which is paused for that moment.`,
		Example:           "  cloche diff build\n  cloche diff --root --summary build",
		GroupID:           command.GroupLook,
		Args:              command.Exactly(1, "one sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			o := api.DiffOptions{Scope: api.DiffWorkspace, Limit: 10_000}
			if root {
				o.Scope = api.DiffRoot
			}
			if summary {
				o.Limit = 1
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return diff(ctx, a, conn, args[0], o, summary)
			})
		},
	}
	c.Flags().BoolVar(&root, "root", false, "the root filesystem instead of the workspace")
	c.Flags().BoolVar(&summary, "summary", false, "only the number of changes")
	return c
}

func diff(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, o api.DiffOptions, summary bool) error {
	letters := map[api.ChangeKind]string{api.ChangeAdded: "A", api.ChangeChanged: "C", api.ChangeRemoved: "D"}
	var all api.Diff
	for {
		d, err := conn.Diff(ctx, ref, o)
		if err != nil {
			return err
		}
		all = withChanges(d, all.Changes)
		if !a.JSON && !summary {
			for _, ch := range d.Changes {
				fmt.Fprintf(a.Stdio.Out, "%s %10d %s\n", letters[ch.Kind], ch.Size, terminal.Printable(slash(ch)))
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
	case a.JSON:
		return a.PrintJSON(all)
	case summary:
		return printCounts(a, all)
	}
	return nil
}

// withChanges is d with what came in the pages before it.
func withChanges(d api.Diff, before []api.Change) api.Diff {
	d.Changes = slices.Concat(before, d.Changes)
	return d
}

// slash returns the path of a change, with a trailing slash for a directory.
func slash(ch api.Change) string {
	if ch.Type == api.TypeDir {
		return ch.Path + "/"
	}
	return ch.Path
}

func printCounts(a *command.CLI, d api.Diff) error {
	_, err := fmt.Fprintf(a.Stdio.Out, "%d added, %d changed, %d removed, %s\n", d.Added, d.Changed, d.Removed, command.FormatSize(d.Bytes))
	return err
}

// CommitCommand is "cloche commit".
func CommitCommand(a *command.CLI) *cobra.Command {
	return settleCommand(a, "commit", "Commit the changes of a layered workspace", `Move a sandbox's changes into its workspace. The sandbox must have been created
with --layered and have ended; --stop ends it first. A commit that has started
is completed, also after a crash of the daemon.`, func(ctx context.Context, conn *command.Connection, ref string) (api.Diff, error) {
		return conn.CommitWorkspace(ctx, ref)
	})
}

// RollbackCommand is "cloche rollback".
func RollbackCommand(a *command.CLI) *cobra.Command {
	return settleCommand(a, "rollback", "Discard the changes of a layered workspace", `Discard a sandbox's changes to its workspace. The sandbox must have been created
with --layered and have ended; --stop ends it first. "cloche rm" discards them
too.`, func(ctx context.Context, conn *command.Connection, ref string) (api.Diff, error) {
		return conn.RollbackWorkspace(ctx, ref)
	})
}

func settleCommand(a *command.CLI, verb, short, long string, do func(context.Context, *command.Connection, string) (api.Diff, error)) *cobra.Command {
	var stop bool
	c := &cobra.Command{
		Use:     verb + " [flags] SANDBOX",
		Short:   short,
		Long:    long,
		Example: "  cloche " + verb + " --stop build",
		GroupID: command.GroupRun,
		Args: func(c *cobra.Command, args []string) error {
			if verb == "commit" && len(args) == 2 {
				return api.Invalid("arguments", "cloche commit makes no image: it keeps what a sandbox wrote to its layered workspace").
					WithHint("`cloche snapshot create %s` keeps the files of a sandbox, for others to begin with", command.ShellWord(args[0]))
			}
			return command.Exactly(1, "one sandbox")(c, args)
		},
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if stop {
					if _, err := conn.Stop(ctx, args[0], api.StopOptions{}); err != nil {
						return err
					}
				}
				d, err := do(ctx, conn, args[0])
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(d)
				}
				return printCounts(a, d)
			})
		},
	}
	c.Flags().BoolVar(&stop, "stop", false, "stop the sandbox first")
	return c
}

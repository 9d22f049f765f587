package workspace

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// WorkspaceFlags are the flags about the workspace of a sandbox, as they were
// typed.
type WorkspaceFlags struct {
	which, size, quota string
	inodes             int64
	drop               bool
}

// Register adds the flags.
func (f *WorkspaceFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.which, "workspace", "", "the workspace, `NAME|DIR[:PATH][:ro]`: a named workspace, or a directory of this machine (with a slash or a leading dot)")
	flags.StringVar(&f.size, "workspace-size", "", "limit of the workspace, a `SIZE` such as 1GiB; writes beyond it fail (default for a private one: its part of --disk)")
	flags.Int64Var(&f.inodes, "workspace-inodes", 0, "limit of files and directories, a `NUMBER`")
	flags.StringVar(&f.quota, "workspace-quota", "", "how the limit is enforced: hard, while a process writes; measured, before and after each command; or watched, which stops the sandbox soon after a private workspace exceeds it (default hard for a size)")
	flags.BoolVar(&f.drop, "workspace-drop", false, "remove a named workspace with the sandbox")
}

// Spec is nil when nothing was said about the workspace.
func (f *WorkspaceFlags) Spec(set func(string) bool, abs command.Absolute) (*api.Workspace, error) {
	said := false
	for _, flag := range []string{"workspace", "workspace-size", "workspace-inodes", "workspace-quota", "workspace-drop"} {
		said = said || set(flag)
	}
	if !said {
		return nil, nil
	}
	w := &api.Workspace{}
	var err error
	if set("workspace") {
		if w, err = command.ParseWorkspace(f.which, abs); err != nil {
			return nil, err
		}
	}
	w.Quota, w.Drop = api.QuotaMode(f.quota), f.drop
	if err := command.CheckText("workspace.quota", f.quota); err != nil {
		return nil, err
	}
	w.SizeBytes, w.Inodes, err = bounds(set, "workspace-size", f.size, "workspace-inodes", f.inodes)
	return w, err
}

// bounds reads two flags of which 0 on the wire means the default, so that a 0
// that was typed is refused.
func bounds(set func(string) bool, sizeFlag, size, inodesFlag string, inodes int64) (bytes, files int64, err error) {
	if set(sizeFlag) {
		if bytes, err = command.ParseSize("--"+sizeFlag, "workspace.size_bytes", size); err != nil {
			return 0, 0, err
		}
	}
	if set(inodesFlag) && inodes <= 0 {
		return 0, 0, api.Invalid("workspace.inodes", "--%s %d is not more than 0", inodesFlag, inodes).WithHint("give a number of files such as 10000")
	}
	return bytes, inodes, nil
}

// Command is "cloche workspace".
func Command(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "workspace",
		Short: "Manage named workspaces",
		Long: `A named workspace is a directory that outlives its sandboxes. One sandbox can
have it writable, or any number read-only: "cloche run --workspace
NAME[:PATH][:ro]". It is created when a sandbox first names it; "cloche
workspace create" can set a size.`,
		Example: "  cloche workspace create --size 2GiB data\n  cloche run --workspace data -- sh -c 'date >> log'\n  cloche workspace ls",
		GroupID: command.GroupLook,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(workspaceCreateCommand(a), workspaceListCommand(a), workspaceInspectCommand(a), workspaceRemoveCommand(a))
	return c
}

func workspaceCreateCommand(a *command.CLI) *cobra.Command {
	var size string
	var inodes int64
	var labels []string
	c := &cobra.Command{
		Use:   "create [flags] NAME",
		Short: "Create a workspace",
		Long: `Create a workspace. With --size the kernel enforces the size: a write beyond it
fails with "no space left on device". This needs a daemon that runs as root.`,
		Example: "  cloche workspace create data\n  cloche workspace create --size 2GiB --inodes 100000 --label team=research data",
		Args:    command.Exactly(1, "NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			spec := api.WorkspaceSpec{Name: args[0]}
			err := command.CheckText("name", spec.Name)
			if err != nil {
				return err
			}
			if spec.SizeBytes, spec.Inodes, err = bounds(c.Flags().Changed, "size", size, "inodes", inodes); err != nil {
				return err
			}
			if spec.Labels, err = command.ParseLabels("--label", labels); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				info, err := conn.CreateWorkspace(ctx, spec)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(info)
				}
				_, err = fmt.Fprintln(a.Stdio.Out, terminal.Printable(info.Name))
				return err
			})
		},
	}
	c.Flags().StringVar(&size, "size", "", "limit of its content, a `SIZE` such as 2GiB")
	c.Flags().Int64Var(&inodes, "inodes", 0, "limit of files and directories, a `NUMBER` (default one for each 16 KiB of its size)")
	c.Flags().StringArrayVar(&labels, "label", nil, "a label, `KEY=VALUE` (repeatable)")
	return c
}

func workspaceListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List workspaces",
		Long: `List the named workspaces. USED is shown for those with a limit; for others it
would need a walk of all files.`,
		Example: "  cloche workspace ls\n  cloche workspace ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Workspaces(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Workspaces = append([]api.WorkspaceInfo{}, list.Workspaces...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, w := range list.Workspaces {
					rows = append(rows, workspaceRow(w, time.Now()))
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "TENANT", "SIZE", "USED", "SANDBOXES", "LAST USED"}, rows)
			})
		},
	}
}

func workspaceRow(w api.WorkspaceInfo, now time.Time) []string {
	row := []string{w.Name, w.Tenant, "-", "-", strconv.Itoa(len(w.Sandboxes)), "never"}
	if w.SizeBytes > 0 {
		row[2] = command.FormatSize(w.SizeBytes)
	}
	if w.UsedBytes != nil {
		row[3] = command.FormatSize(*w.UsedBytes)
	}
	if w.UsedAt != nil {
		row[5] = command.FormatAge(now.Sub(*w.UsedAt)) + " ago"
	}
	if w.State != "" {
		row[5] = string(w.State) // it cannot be used
	}
	return row
}

// tenantUsage is the help of --tenant.
const tenantUsage = "the tenant whose workspace it is, for the operator (default your own), a `NAME`"

func workspaceInspectCommand(a *command.CLI) *cobra.Command {
	var tenant string
	c := &cobra.Command{
		Use:     "inspect NAME...",
		Short:   "Show the records of workspaces",
		Long:    "Show the record of each workspace as JSON: limit, use, sandboxes.",
		Example: "  cloche workspace inspect data",
		Args:    workspaceNames,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				for _, name := range args {
					info, err := conn.GetWorkspace(ctx, tenant, name)
					if err == nil && a.JSON {
						err = a.PrintJSON(info)
					} else if err == nil {
						err = a.EncodeJSON(info, "  ")
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&tenant, "tenant", "", tenantUsage)
	return c
}

func workspaceRemoveCommand(a *command.CLI) *cobra.Command {
	var tenant string
	c := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove workspaces with all their files",
		Long:    "Remove workspaces with all their files. A workspace in use is kept.",
		Example: "  cloche workspace rm data",
		Args:    workspaceNames,
		RunE: func(c *cobra.Command, args []string) error {
			return a.Each(c.Context(), args, "removing", func(ctx context.Context, conn *command.Connection, name string) (any, error) {
				return command.Removed{Removed: name}, conn.RemoveWorkspace(ctx, tenant, name)
			})
		},
	}
	c.Flags().StringVar(&tenant, "tenant", "", tenantUsage)
	return c
}

func workspaceNames(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return api.Invalid("workspace", "%s: no workspace was named", c.CommandPath()).WithHint(`"cloche workspace ls" lists them`)
	}
	return nil
}

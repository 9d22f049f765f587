package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// ErrorsCommand is "cloche errors".
func ErrorsCommand(a *command.CLI) *cobra.Command {
	var o api.ErrorOptions
	c := &cobra.Command{
		Use:   "errors",
		Short: "Show recent errors of creates and execs",
		Long: `Show recent errors of creates, execs and starts of processes, newest first:
yours, or for the operator those of all tenants. The daemon remembers 50 of each
tenant while it runs; "cloche audit tail" has every request. A command that
fails isn't an error.`,
		Example: "  cloche errors\n  cloche errors --tenant red --limit 5 --json",
		GroupID: command.GroupLook,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Limit < 1 {
				return api.Invalid("limit", "--limit is %d", o.Limit).WithHint("1 or more")
			}
			if err := command.CheckText("tenant", o.Tenant); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Errors(ctx, o)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Errors = append([]api.ErrorRecord{}, list.Errors...)
					return a.PrintJSON(list)
				}
				rows := make([][]string, 0, len(list.Errors))
				for _, e := range list.Errors {
					rows = append(rows, []string{
						e.Time.Local().Format(time.DateTime), e.Tenant, string(e.Stage), string(e.Code), command.OrDash(e.QueryID), command.OrDash(e.RequestID), e.Message,
					})
				}
				return command.WriteTable(a.Stdio.Out, []string{"TIME", "TENANT", "STAGE", "CODE", "QUERY", "REQUEST", "MESSAGE"}, rows)
			})
		},
	}
	c.Flags().StringVar(&o.Tenant, "tenant", "", "only errors of this `tenant`, for the operator")
	c.Flags().IntVar(&o.Limit, "limit", api.KeptErrors, "the number of errors")
	return c
}

// GuidanceCommand is "cloche guidance".
func GuidanceCommand(a *command.CLI) *cobra.Command {
	var o api.GuidanceOptions
	c := &cobra.Command{
		Use:   "guidance [flags] [SANDBOX]",
		Short: "Print text about a sandbox for a model's prompt",
		Long: `Print text for the system prompt of a model that can run commands: the path of
the workspace, what the network reaches, the limits, and the skills. It
describes SANDBOX, or a sandbox as it would be created for you.`,
		Example:           "  cloche guidance box\n  cloche guidance --profile network_basic --all-skills",
		GroupID:           command.GroupLook,
		Args:              command.AtMostOne,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.Sandbox = args[0]
			}
			if err := command.CheckText("profile", o.Profile); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				g, err := conn.Guidance(ctx, o)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(g)
				}
				return command.PrintLines(a, g.Text)
			})
		},
	}
	c.Flags().StringVar(&o.Profile, "profile", "", "the `profile` of the assumed sandbox (default the daemon's)")
	c.Flags().BoolVar(&o.AllSkills, "all-skills", false, "assume that it has all your skills")
	return c
}

// StatusCommand is "cloche status".
func StatusCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show whether a sandbox is available",
		Long: `Show whether a sandbox is available now. If not, the reason is one of: disabled,
engine_down (the engine that the operator named), no_engine (none is named, and
none can be used), disk_full (the filesystem of the daemon's home has no space
or inodes left), audit_failing (the audit log can't be written, and operations
that need a record are refused), never_connected (no daemon answers), failing
(it answers with an error). A program with the Go client can also get
connection_lost.

Exit status: 0 a sandbox is available, 1 not.`,
		Example: "  cloche status\n  cloche status --json",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := command.Interruptible(c.Context())
			defer cancel()
			conn, err := a.DaemonOrNone()
			if err != nil {
				return err
			}
			defer conn.Close()
			st := conn.Standing(ctx)
			if ctx.Err() != nil {
				_, err := conn.Status(ctx)
				return err
			}
			if err := printStatus(a, st); err != nil {
				return err
			}
			if !st.Available {
				return command.StatusError(1)
			}
			return nil
		},
	}
}

func printStatus(a *command.CLI, st api.Status) error {
	if a.JSON {
		return a.PrintJSON(st)
	}
	text := fmt.Sprintf("available: engine %s, profile %s\n", st.Engine.Name, st.Profile)
	if !st.Available {
		text = fmt.Sprintf("not available: %s: %s\n", st.Reason, st.Message)
	}
	if st.Version != "" {
		text += fmt.Sprintf("sandboxes: %d live, %d being made, %d waiting for that\nrecent errors: %d\n", st.Sandboxes, st.Starting, st.Queued, st.RecentErrors)
	}
	for _, p := range st.Problems {
		text += problemLines("", p)
	}
	return command.PrintLines(a, text)
}

// problemLines returns the lines that describe a problem and how to fix it.
func problemLines(indent string, p api.Problem) string {
	text := fmt.Sprintf("%sproblem: %s\n", indent, oneLine(p.What))
	if p.Mend != "" {
		text += fmt.Sprintf("%sfix: %s\n", indent, oneLine(p.Mend))
	}
	return text
}

// oneLine keeps a text from the daemon on one line.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }

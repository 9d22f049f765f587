package network

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// EgressCommand is "cloche egress".
func EgressCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "egress",
		Short: "Manage a sandbox's network rules",
		Long: `Show and change the network rules of a sandbox, and show allowed and refused
connections. A sandbox with a network reaches the names that its rules allow,
and nothing else.

A rule is HOST: HTTP and TLS on ports 80 and 443 that name the same host;
HOST:PORT: any protocol on that port; IP:PORT; or @BUNDLE. HOST is a name, "*."
before a name, or "*". "HOST at RANGE" allows an address in a range that isn't
public.`,
		Example: "  cloche create --name box --allow pypi.org\n  cloche egress log -f box\n  cloche egress allow box files.pythonhosted.org --for 10m",
		GroupID: command.GroupLook,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		egressRulesCommand(a), egressLogCommand(a), egressAllowCommand(a), egressDenyCommand(a), egressRemoveCommand(a), egressSetCommand(a),
		approvalsCommand(a), approveCommand(a), rejectCommand(a),
	)
	return c
}

func egressRulesCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "rules SANDBOX",
		Short: "Show the rules in force",
		Long: `Show the rules in force in a sandbox, the end of temporary ones, and the
operator's denials. With --json also the used part of the limits.`,
		Example:           "  cloche egress rules box",
		Args:              command.Exactly(1, "a sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				r, err := conn.Egress(ctx, args[0])
				if err != nil {
					return err
				}
				return egressRules(a, r)
			})
		},
	}
}

// egressRules prints rules: a table for people.
func egressRules(a *command.CLI, r api.EgressRules) error {
	if a.JSON {
		return a.PrintJSON(r)
	}
	if r.Network != api.NetworkOn {
		a.Note("the sandbox has no network")
		return nil
	}
	var rows [][]string
	for _, list := range []struct {
		what  string
		deny  bool
		rules []string
	}{{"allow", false, r.Egress.Allow}, {"deny", true, r.Egress.Deny}} {
		for _, text := range list.rules {
			until := "-"
			if i := slices.IndexFunc(r.Temporary, func(t api.TemporaryRule) bool { return t.Rule == text && t.Deny == list.deny }); i >= 0 {
				until = r.Temporary[i].ExpiresAt.Local().Format(time.DateTime)
			}
			rows = append(rows, []string{list.what, text, until})
		}
	}
	for _, q := range r.Egress.Requests {
		rows = append(rows, []string{"request", strings.TrimSpace(strings.Join(q.Methods, ",") + " " + q.Host + strings.Join(q.Paths, ",")), "-"})
	}
	for _, text := range r.Operator {
		rows = append(rows, []string{"operator", text, "-"})
	}
	if len(rows) == 0 {
		a.Note("nothing is let out")
		return nil
	}
	return command.WriteTable(a.Stdio.Out, []string{"WHAT", "RULE", "UNTIL"}, rows)
}

func egressLogCommand(a *command.CLI) *cobra.Command {
	var kinds []string
	var o api.EgressLogOptions
	c := &cobra.Command{
		Use:   "log [flags] SANDBOX",
		Short: "Show allowed and refused connections",
		Long: `Show the allowed and refused connections of a sandbox, oldest first: one line
each with time, kind, destination, and details. --follow continues with new ones
until the sandbox ends. The log is kept as long as the sandbox's record.

Kinds are opened, closed, refused, request and changed.`,
		Example:           "  cloche egress log box\n  cloche egress log -f --kind refused box\n  cloche egress log --json -n 100 box",
		Args:              command.Exactly(1, "a sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if o.Tail < 0 {
				return api.Invalid("lines", "--lines %d is less than none", o.Tail).WithHint("give a number such as 20, or 0 for all")
			}
			for _, k := range kinds {
				if !slices.Contains(api.EgressKinds(), api.EgressKind(k)) {
					return api.Invalid("kind", "--kind %q does not exist", terminal.Clip(k)).WithHint("the kinds are opened, closed, refused, request and changed")
				}
				o.Kinds = append(o.Kinds, api.EgressKind(k))
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return command.UntilInterrupted(ctx, o.Follow, conn.EgressLog(ctx, args[0], o, func(r api.EgressRecord) error { return egressRecord(a, r) }))
			})
		},
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "continue with new events")
	c.Flags().IntVarP(&o.Tail, "lines", "n", 0, "only the last `RECORDS` (default all that are kept)")
	c.Flags().StringArrayVar(&kinds, "kind", nil, "only this `KIND` (repeatable: any may match)")
	return c
}

func egressRecord(a *command.CLI, r api.EgressRecord) error {
	if a.JSON {
		return a.PrintJSON(r)
	}
	if r.Missed > 0 {
		a.Note("%d records before this one are no longer kept", r.Missed)
	}
	if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(egressText(r))); err != nil {
		return command.OutputError(err)
	}
	return nil
}

func egressText(r api.EgressRecord) string {
	parts := []string{r.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), string(r.Kind)}
	if r.Name != "" {
		parts = append(parts, command.HostPort(r.Name, r.Port))
	}
	add := func(key, value string) {
		if value != "" {
			parts = append(parts, key+"="+value)
		}
	}
	if r.Method != "" {
		parts = append(parts, terminal.Clip(r.Method+" "+r.Path))
	}
	if r.Status != 0 {
		add("status", strconv.Itoa(r.Status))
	}
	if r.Addr != r.Name {
		add("addr", r.Addr)
	}
	if r.ResolvedBy == "upstream" {
		add("resolved_by", r.ResolvedBy)
	}
	add("protocol", r.Protocol)
	add("rule", r.Rule)
	if r.Kind == api.EgressClosed {
		add("out", command.FormatSize(r.BytesOut))
		add("in", command.FormatSize(r.BytesIn))
		add("time", (time.Duration(r.DurationMS) * time.Millisecond).String())
	}
	add("secrets", strings.Join(r.Secrets, ","))
	if r.Suppressed > 0 {
		add("suppressed", strconv.FormatInt(r.Suppressed, 10))
	}
	if r.Allow != "" {
		add("allow", command.ShellWord(r.Allow))
	}
	if r.Reason != "" {
		parts = append(parts, r.Reason)
	}
	return strings.Join(parts, " ")
}

func egressAllowCommand(a *command.CLI) *cobra.Command {
	return egressChangeCommand(a, &cobra.Command{
		Use:   "allow [flags] SANDBOX RULE...",
		Short: "Add rules that allow connections",
		Long: `Add rules that allow connections of a running sandbox, permanently or for a
time. The operator can allow everything that the policy doesn't deny; other
callers what the policy lets them request.`,
		Example: "  cloche egress allow box pypi.org\n  cloche egress allow box db.example.com:5432 --for 10m\n  cloche egress allow box \"db.corp:5432 at 10.1.0.0/16\"",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Allow: rules} }, true)
}

func egressDenyCommand(a *command.CLI) *cobra.Command {
	return egressChangeCommand(a, &cobra.Command{
		Use:   "deny [flags] SANDBOX RULE...",
		Short: "Add rules that deny connections",
		Long: `Deny connections of a running sandbox, whatever else allows them. Open
connections are reset.`,
		Example: "  cloche egress deny box \"*.example.com\"\n  cloche egress deny box @github-read --for 1h",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Deny: rules} }, true)
}

func egressRemoveCommand(a *command.CLI) *cobra.Command {
	return egressChangeCommand(a, &cobra.Command{
		Use:   "remove SANDBOX RULE...",
		Short: "Remove rules",
		Long: `Remove rules of a running sandbox, as "cloche egress rules" shows them. Write
"deny " before a rule that denies. Connections that no other rule allows are
reset.`,
		Example: "  cloche egress remove box pypi.org\n  cloche egress remove box \"deny *.example.com\"",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Remove: rules} }, false)
}

func egressSetCommand(a *command.CLI) *cobra.Command {
	var f EgressFlags
	var network string
	c := &cobra.Command{
		Use:   "set [flags] SANDBOX",
		Short: "Replace all rules",
		Long: `Replace all network rules of a running sandbox that was created with a network.
When it returns, the new rules are in force and no connection is open that they
don't allow. With --net none the sandbox resolves no name and makes no
connection, as if it had been created without a network.`,
		Example: "  cloche egress set --net none box\n  cloche egress set --allow api.example.com box",
		Args:    command.Exactly(1, "a sandbox"),
		RunE: func(c *cobra.Command, args []string) error {
			p := api.EgressPolicy{Network: network}
			var err error
			if p.Egress, err = f.Egress(); err != nil {
				return err
			}
			if p.Network == "" && p.Egress == nil {
				return api.Invalid("flags", "%s: nothing says what may leave", c.CommandPath()).WithHint("give --net none, --net on for the profile's, or --allow")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				r, err := conn.ReplaceEgress(ctx, args[0], p)
				if err != nil {
					return err
				}
				return egressRules(a, r)
			})
		},
	}
	c.ValidArgsFunction = a.CompleteSandboxes
	c.Flags().StringVar(&network, "net", "", "the network, `none|on` (default on, with --allow)")
	f.Register(c.Flags())
	return c
}

// egressChangeCommand makes a verb that changes rules.
func egressChangeCommand(a *command.CLI, c *cobra.Command, change func(rules []string) api.EgressChange, timed bool) *cobra.Command {
	var length string
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) < 2 {
			return api.Invalid("arguments", "%s: %s, want a sandbox and a rule", c.CommandPath(), command.Counted(len(args), "argument")).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
	c.ValidArgsFunction = a.CompleteSandboxes
	c.RunE = func(c *cobra.Command, args []string) error {
		rules, err := splitRules("the list", args[1:])
		if err != nil {
			return err
		}
		ch := change(rules)
		if c.Flags().Changed("for") {
			if ch.ForMS, err = parseFor(length); err != nil {
				return err
			}
		}
		return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
			r, err := conn.ChangeEgress(ctx, args[0], ch)
			if err != nil {
				return err
			}
			return egressRules(a, r)
		})
	}
	if timed {
		c.Flags().StringVar(&length, "for", "", "remove it after this `duration`, such as 10m")
	}
	return c
}

// parseFor reads how long a rule is to hold.
func parseFor(s string) (int64, error) {
	ms, err := command.ParseTimeout("--for", "for_ms", s)
	if err == nil && ms == 0 {
		err = api.Invalid("for_ms", "--for is 0, which is no time at all").WithHint("give a duration such as 10m, or leave it out for good")
	}
	return ms, err
}

func approvalsCommand(a *command.CLI) *cobra.Command {
	var o api.ApprovalOptions
	c := &cobra.Command{
		Use:   "approvals [flags] [SANDBOX]",
		Short: "List connections that wait for approval",
		Long: `List the connections of sandboxes with --ask that no rule covers. An approval
request stays open for ten minutes; the connection itself is held for half a
minute.`,
		Example:           "  cloche egress approvals\n  cloche egress approvals --all box",
		Args:              command.AtMostOne,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.Sandbox = args[0]
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Approvals(ctx, o)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Approvals = append([]api.Approval{}, list.Approvals...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, p := range list.Approvals {
					rows = append(rows, []string{
						p.ID, cmp.Or(p.SandboxName, p.Sandbox), command.HostPort(p.Name, p.Port), p.Rule, string(p.State), command.FormatAge(time.Since(p.AskedAt)) + " ago",
					})
				}
				return command.WriteTable(a.Stdio.Out, []string{"ID", "SANDBOX", "TO", "RULE", "STATE", "ASKED"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&o.All, "all", false, "also those that were decided or ended recently")
	return c
}

func approveCommand(a *command.CLI) *cobra.Command {
	var length string
	c := &cobra.Command{
		Use:   "approve [flags] ID...",
		Short: "Approve connections",
		Long: `Approve connections that a sandbox waits for: their rules are put into force
there, permanently or for a time.`,
		Example: "  cloche egress approve ap-0123456789 --for 10m",
		Args:    approvalIDs,
		RunE: func(c *cobra.Command, args []string) (err error) {
			answer := api.ApprovalAnswer{Approve: true}
			if c.Flags().Changed("for") {
				if answer.ForMS, err = parseFor(length); err != nil {
					return err
				}
			}
			return answerApproval(a, c, args, answer)
		},
	}
	c.Flags().StringVar(&length, "for", "", "remove the rule after this `duration`, such as 10m")
	return c
}

func rejectCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "reject ID...",
		Short: "Reject connections",
		Long: `Reject connections that a sandbox waits for. The same connections are refused
for ten minutes.`,
		Example: "  cloche egress reject ap-0123456789",
		Args:    approvalIDs,
		RunE: func(c *cobra.Command, args []string) error {
			return answerApproval(a, c, args, api.ApprovalAnswer{})
		},
	}
}

func approvalIDs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return api.Invalid("approval", "%s: no approval was named", c.CommandPath()).WithHint(`"cloche egress approvals" lists them`)
	}
	return nil
}

func answerApproval(a *command.CLI, c *cobra.Command, ids []string, answer api.ApprovalAnswer) error {
	return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
		for _, id := range ids {
			p, err := conn.AnswerApproval(ctx, id, answer)
			if err != nil {
				return err
			}
			if a.JSON {
				if err := a.PrintJSON(p); err != nil {
					return err
				}
				continue
			}
			if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(p.ID+" "+string(p.State)+": "+p.Rule+" in "+cmp.Or(p.SandboxName, p.Sandbox))); err != nil {
				return command.OutputError(err)
			}
		}
		return nil
	})
}

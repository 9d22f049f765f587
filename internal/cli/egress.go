package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
)

func (a *app) egressCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "egress",
		Short: "What may leave a sandbox, and what did",
		Long: `What may leave a sandbox, what did, and what was not let out. A sandbox with a
network reaches the names that its rules allow, and nothing else.

A rule is HOST, which is HTTP and TLS on ports 80 and 443 that name the same host;
HOST:PORT, which is any protocol on that port; IP:PORT; or @BUNDLE. A host is a
name, "*." before a name, or "*". "HOST at RANGE" lets the host be in a range that
is not public.`,
		Example: "  cloche create --name box --allow pypi.org\n  cloche egress log -f box\n  cloche egress allow box files.pythonhosted.org --for 10m",
		GroupID: groupLook,
		Args:    a.unknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		a.egressRulesCommand(), a.egressLogCommand(), a.egressAllowCommand(), a.egressDenyCommand(), a.egressRemoveCommand(), a.egressSetCommand(),
		a.approvalsCommand(), a.approveCommand(), a.rejectCommand(),
	)
	return c
}

func (a *app) egressRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rules SANDBOX",
		Short:             "Show the rules that are in force in a sandbox",
		Long:              "Show the rules that are in force in a sandbox, when those end that are for a\nwhile, and what the operator holds back. With --json also what was used of the\nlimits.",
		Example:           "  cloche egress rules box",
		Args:              exactly(1, "a sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				r, err := conn.Egress(ctx, args[0])
				if err != nil {
					return err
				}
				return a.egressRules(r)
			})
		},
	}
}

// egressRules prints rules: a table for people.
func (a *app) egressRules(r api.EgressRules) error {
	if a.json {
		return a.printJSON(r)
	}
	if r.Network != api.NetworkOn {
		a.note("the sandbox has no network")
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
		a.note("nothing is let out")
		return nil
	}
	return writeTable(a.stdio.Out, []string{"WHAT", "RULE", "UNTIL"}, rows)
}

func (a *app) egressLogCommand() *cobra.Command {
	var kinds []string
	var o api.EgressLogOptions
	c := &cobra.Command{
		Use:   "log [flags] SANDBOX",
		Short: "Show what left a sandbox and what did not",
		Long: `Show what left a sandbox and what did not, oldest first: one line each with its
time, kind, where to, and what there is to say. With --follow go on with what
happens next, until the sandbox ends. The log stays as long as the sandbox's
record does.

Kinds are opened, closed, refused, request and changed.`,
		Example:           "  cloche egress log box\n  cloche egress log -f --kind refused box\n  cloche egress log --json -n 100 box",
		Args:              exactly(1, "a sandbox"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if o.Tail < 0 {
				return api.Invalid("lines", "--lines %d is less than none", o.Tail).WithHint("give a number such as 20, or 0 for all")
			}
			for _, k := range kinds {
				if !slices.Contains(api.EgressKinds(), api.EgressKind(k)) {
					return api.Invalid("kind", "--kind %q is none", clip(k)).WithHint("the kinds are opened, closed, refused, request and changed")
				}
				o.Kinds = append(o.Kinds, api.EgressKind(k))
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				return untilInterrupted(ctx, o.Follow, conn.EgressLog(ctx, args[0], o, a.egressRecord))
			})
		},
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what happens next")
	c.Flags().IntVarP(&o.Tail, "lines", "n", 0, "only so many of the last `RECORDS` (default all that are kept)")
	c.Flags().StringArrayVar(&kinds, "kind", nil, "only this `KIND` (repeatable: any may match)")
	return c
}

func (a *app) egressRecord(r api.EgressRecord) error {
	if a.json {
		return a.printJSON(r)
	}
	if r.Missed > 0 {
		a.note("%d records before this one are no longer kept", r.Missed)
	}
	if _, err := fmt.Fprintln(a.stdio.Out, printable(egressText(r))); err != nil {
		return outputError(err)
	}
	return nil
}

func egressText(r api.EgressRecord) string {
	parts := []string{r.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), string(r.Kind)}
	if r.Name != "" {
		parts = append(parts, hostPort(r.Name, r.Port))
	}
	add := func(key, value string) {
		if value != "" {
			parts = append(parts, key+"="+value)
		}
	}
	if r.Method != "" {
		parts = append(parts, clip(r.Method+" "+r.Path))
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
		add("out", formatSize(r.BytesOut))
		add("in", formatSize(r.BytesIn))
		add("time", (time.Duration(r.DurationMS) * time.Millisecond).String())
	}
	add("secrets", strings.Join(r.Secrets, ","))
	if r.Suppressed > 0 {
		add("suppressed", strconv.FormatInt(r.Suppressed, 10))
	}
	if r.Allow != "" {
		add("allow", shellWord(r.Allow))
	}
	if r.Reason != "" {
		parts = append(parts, r.Reason)
	}
	return strings.Join(parts, " ")
}

// hostPort is where something goes; port 0 is not known.
func hostPort(name string, port int) string {
	if port == 0 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(port))
}

func (a *app) egressAllowCommand() *cobra.Command {
	return a.egressChangeCommand(&cobra.Command{
		Use:   "allow [flags] SANDBOX RULE...",
		Short: "Let more out of a running sandbox",
		Long: `Let more out of a running sandbox, for good or for a while. The operator may
allow whatever the policy does not hold back; others what the policy lets them
ask for.`,
		Example: "  cloche egress allow box pypi.org\n  cloche egress allow box db.example.com:5432 --for 10m\n  cloche egress allow box \"db.corp:5432 at 10.1.0.0/16\"",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Allow: rules} }, true)
}

func (a *app) egressDenyCommand() *cobra.Command {
	return a.egressChangeCommand(&cobra.Command{
		Use:     "deny [flags] SANDBOX RULE...",
		Short:   "Hold something back in a running sandbox",
		Long:    "Hold something back in a running sandbox, whatever else allows it. Connections\nto it are reset.",
		Example: "  cloche egress deny box \"*.example.com\"\n  cloche egress deny box @github-read --for 1h",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Deny: rules} }, true)
}

func (a *app) egressRemoveCommand() *cobra.Command {
	return a.egressChangeCommand(&cobra.Command{
		Use:   "remove SANDBOX RULE...",
		Short: "Take rules of a running sandbox away",
		Long: `Take rules of a running sandbox away, as "cloche egress rules" shows them. One
that denies is written with "deny " before it. Connections that no other rule
allows are reset.`,
		Example: "  cloche egress remove box pypi.org\n  cloche egress remove box \"deny *.example.com\"",
	}, func(rules []string) api.EgressChange { return api.EgressChange{Remove: rules} }, false)
}

func (a *app) egressSetCommand() *cobra.Command {
	var f egressFlags
	var network string
	c := &cobra.Command{
		Use:   "set [flags] SANDBOX",
		Short: "Replace all that may leave a running sandbox",
		Long: `Replace all that may leave a running sandbox that was made with a network. When
it returns, the new rules are in force and no connection is left that they do not
allow. With --net none nothing leaves from then on: no name is answered for and
no connection is made, as if the sandbox had been made without a network.`,
		Example: "  cloche egress set --net none box\n  cloche egress set --allow api.example.com box",
		Args:    exactly(1, "a sandbox"),
		RunE: func(c *cobra.Command, args []string) error {
			p := api.EgressPolicy{Network: network}
			var err error
			if p.Egress, err = f.egress(); err != nil {
				return err
			}
			if p.Network == "" && p.Egress == nil {
				return api.Invalid("flags", "%s: nothing says what may leave", c.CommandPath()).WithHint("give --net none, --net on for the profile's, or --allow")
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				r, err := conn.ReplaceEgress(ctx, args[0], p)
				if err != nil {
					return err
				}
				return a.egressRules(r)
			})
		},
	}
	c.ValidArgsFunction = a.completeSandboxes
	c.Flags().StringVar(&network, "net", "", "the network, `none|on` (default on, with --allow)")
	f.register(c.Flags())
	return c
}

// egressChangeCommand makes a verb that changes rules.
func (a *app) egressChangeCommand(c *cobra.Command, change func(rules []string) api.EgressChange, timed bool) *cobra.Command {
	var length string
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) < 2 {
			return api.Invalid("arguments", "%s: %s, want a sandbox and a rule", c.CommandPath(), counted(len(args), "argument")).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
	c.ValidArgsFunction = a.completeSandboxes
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
		return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
			r, err := conn.ChangeEgress(ctx, args[0], ch)
			if err != nil {
				return err
			}
			return a.egressRules(r)
		})
	}
	if timed {
		c.Flags().StringVar(&length, "for", "", "take it away again after this `duration`, such as 10m")
	}
	return c
}

// parseFor reads how long a rule is to hold.
func parseFor(s string) (int64, error) {
	ms, err := parseTimeout("--for", "for_ms", s)
	if err == nil && ms == 0 {
		err = api.Invalid("for_ms", "--for is 0, which is no time at all").WithHint("give a duration such as 10m, or leave it out for good")
	}
	return ms, err
}

func (a *app) approvalsCommand() *cobra.Command {
	var o api.ApprovalOptions
	c := &cobra.Command{
		Use:   "approvals [flags] [SANDBOX]",
		Short: "List what sandboxes want out and wait for",
		Long: `List what sandboxes that were made with --ask want out, of which no rule speaks.
A question waits for ten minutes; the connection itself for half a minute of
them.`,
		Example:           "  cloche egress approvals\n  cloche egress approvals --all box",
		Args:              atMostOne,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.Sandbox = args[0]
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				list, err := conn.Approvals(ctx, o)
				if err != nil {
					return err
				}
				if a.json {
					list.Approvals = append([]api.Approval{}, list.Approvals...)
					return a.printJSON(list)
				}
				var rows [][]string
				for _, p := range list.Approvals {
					rows = append(rows, []string{
						p.ID, cmp.Or(p.SandboxName, p.Sandbox), hostPort(p.Name, p.Port), p.Rule, string(p.State), formatAge(time.Since(p.AskedAt)) + " ago",
					})
				}
				return writeTable(a.stdio.Out, []string{"ID", "SANDBOX", "TO", "RULE", "STATE", "ASKED"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&o.All, "all", false, "those that were answered or ended a short while ago too")
	return c
}

func (a *app) approveCommand() *cobra.Command {
	var length string
	c := &cobra.Command{
		Use:     "approve [flags] ID...",
		Short:   "Let out what a sandbox waits for",
		Long:    "Let out what a sandbox waits for: its rule is put into force there, for good or\nfor a while.",
		Example: "  cloche egress approve ap-0123456789 --for 10m",
		Args:    approvalIDs,
		RunE: func(c *cobra.Command, args []string) (err error) {
			answer := api.ApprovalAnswer{Approve: true}
			if c.Flags().Changed("for") {
				if answer.ForMS, err = parseFor(length); err != nil {
					return err
				}
			}
			return a.answer(c, args, answer)
		},
	}
	c.Flags().StringVar(&length, "for", "", "take the rule away again after this `duration`, such as 10m")
	return c
}

func (a *app) rejectCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "reject ID...",
		Short:   "Refuse what a sandbox waits for",
		Long:    "Refuse what a sandbox waits for. The same is refused at once for ten minutes.",
		Example: "  cloche egress reject ap-0123456789",
		Args:    approvalIDs,
		RunE: func(c *cobra.Command, args []string) error {
			return a.answer(c, args, api.ApprovalAnswer{})
		},
	}
}

func approvalIDs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return api.Invalid("approval", "%s: no approval was named", c.CommandPath()).WithHint(`"cloche egress approvals" lists them`)
	}
	return nil
}

func (a *app) answer(c *cobra.Command, ids []string, answer api.ApprovalAnswer) error {
	return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
		for _, id := range ids {
			p, err := conn.AnswerApproval(ctx, id, answer)
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(p); err != nil {
					return err
				}
				continue
			}
			if _, err := fmt.Fprintln(a.stdio.Out, printable(p.ID+" "+string(p.State)+": "+p.Rule+" in "+cmp.Or(p.SandboxName, p.Sandbox))); err != nil {
				return outputError(err)
			}
		}
		return nil
	})
}

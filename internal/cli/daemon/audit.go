package daemon

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// AuditCommand is "cloche audit".
func AuditCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Read and verify the audit log",
		Long: `The audit log records each request, its caller, the decision with its rule, and
the outcome. Each record has the hash of the previous one, so that a changed,
removed or moved record is detected.

It is for the operator; the rule "audit: {tenants: [NAME]}" lets a tenant read
its own records.`,
		Example: "  cloche audit tail -f\n  cloche audit verify\n  cloche audit export > audit.ndjson",
		GroupID: command.GroupLook,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(auditTailCommand(a), auditExportCommand(a), auditVerifyCommand(a), auditUsageCommand(a))
	return c
}

// auditFilter is the flags that choose records, as they were typed.
type auditFilter struct {
	o            api.AuditOptions
	since, until string
}

func (f *auditFilter) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.since, "since", "", "only from this `SEQ|TIME|DURATION` on: after record SEQ, a time, or a duration before now")
	flags.StringVar(&f.until, "until", "", "only before this `TIME|DURATION`")
	flags.StringVar(&f.o.Tenant, "tenant", "", "only those of this `TENANT`")
	flags.StringVar(&f.o.Sandbox, "sandbox", "", "only those of this `SANDBOX`: an id, or a name for all sandboxes with it")
	flags.StringVar(&f.o.Verb, "verb", "", "only this `VERB`, such as exec")
	flags.StringVar(&f.o.Outcome, "outcome", "", "only this `OUTCOME`: granted, ok, refused or failed")
}

func (f *auditFilter) options(now time.Time) (api.AuditOptions, error) {
	o := f.o
	if f.since != "" {
		at, err := command.ParseSince(f.since, now)
		switch {
		case err != nil:
			return o, err
		case at.Number == nil:
			o.Since = at.Time
		case *at.Number < 0:
			return o, api.Invalid("since", "--since %s is a negative number", terminal.Clip(f.since)).WithHint("give the number of a record, a time or a duration")
		default:
			o.After = *at.Number
		}
	}
	if f.until != "" {
		at, err := command.ParseSince(f.until, now)
		if err != nil || at.Number != nil {
			return o, api.Invalid("until", "--until %q is neither a time nor a duration", terminal.Clip(f.until)).WithHint("write a time such as 2026-11-21T09:30:00Z, or a duration before now such as 10m")
		}
		o.Until = at.Time
	}
	switch o.Outcome {
	case "", "granted", "ok", "refused", "failed":
	default:
		return o, api.Invalid("outcome", "--outcome %q does not exist", terminal.Clip(o.Outcome)).WithHint("the outcomes are granted, ok, refused and failed")
	}
	return o, nil
}

func auditTailCommand(a *command.CLI) *cobra.Command {
	var f auditFilter
	c := &cobra.Command{
		Use:   "tail [flags]",
		Short: "Show the last records",
		Long: `Show the last records, oldest first: one line each with time, number, outcome,
tenant, verb, sandbox, and details. --follow continues with new records. With
--json each line is as the log has it.`,
		Example: "  cloche audit tail -n 100\n  cloche audit tail -f --outcome refused\n  cloche audit tail --since 1h --verb exec --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.options(time.Now())
			if err != nil {
				return err
			}
			if o.Tail < 0 {
				return api.Invalid("lines", "--lines %d is less than none", o.Tail).WithHint("give a number such as 20, or 0 for all")
			}
			if f.since != "" && !c.Flags().Changed("lines") {
				o.Tail = 0
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return command.UntilInterrupted(ctx, o.Follow, conn.Audit(ctx, o, func(r api.AuditRecord, line []byte) error { return auditRecord(a, r, line) }))
			})
		},
	}
	c.Flags().BoolVarP(&f.o.Follow, "follow", "f", false, "continue with new records")
	c.Flags().IntVarP(&f.o.Tail, "lines", "n", 20, "the number of `RECORDS`; 0 is all")
	f.register(c.Flags())
	return c
}

// auditRecord prints one record: for a person, or the line as it is, in which
// every character that is not printable is escaped.
func auditRecord(a *command.CLI, r api.AuditRecord, line []byte) error {
	text := string(line)
	if !a.JSON {
		text = auditText(r)
	}
	if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(text)); err != nil {
		return command.OutputError(err)
	}
	return nil
}

func auditText(r api.AuditRecord) string {
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	parts := []string{
		r.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), strconv.FormatInt(r.Seq, 10),
		dash(r.Outcome), dash(r.Tenant), r.Verb, dash(r.Sandbox),
	}
	if r.Code != "" {
		parts = append(parts, "code="+string(r.Code))
	}
	if r.Rule != "" {
		parts = append(parts, "rule="+r.Rule)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Details)) {
		parts = append(parts, k+"="+r.Details[k])
	}
	if c := r.Chain; c != nil {
		parts = append(parts, string(c.Kind))
		if c.First > 0 || c.Last > 0 {
			parts = append(parts, fmt.Sprintf("records %d to %d", c.First, c.Last))
		}
		if c.Count > 0 {
			parts = append(parts, command.Counted(int(c.Count), "record")+" could not be written")
		}
		if c.Reason != "" {
			parts = append(parts, c.Reason)
		}
	}
	if u := r.Usage; u != nil {
		parts = append(parts, fmt.Sprintf("cpu=%.3fs memory=%.1fGiBs time=%.1fs", u.CPUSeconds, u.GiBSeconds, u.Seconds))
	}
	return strings.Join(parts, " ")
}

func auditExportCommand(a *command.CLI) *cobra.Command {
	var f auditFilter
	var to string
	c := &cobra.Command{
		Use:   "export [flags]",
		Short: "Export records of the audit log",
		Long: `Write records as the log has them, one line of JSON each. "cloche audit verify
FILE" verifies them without a daemon. A filter by tenant, sandbox, verb or
outcome omits records, which a verification reports as missing; --since doesn't.

Keep the last number and hash, or the file, where this machine can't change it:
it proves later that no record was cut off.`,
		Example: "  cloche audit export > audit.ndjson\n  cloche audit export --since 1200 -o next.ndjson",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			o, err := f.options(time.Now())
			if err != nil {
				return err
			}
			out := a.Stdio.Out
			if to != "" && to != "-" {
				file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return api.Invalid("output", "--output: %w", err).WithHint("name a file that does not exist yet")
				}
				defer func() {
					if cerr := file.Close(); err == nil && cerr != nil {
						err = command.OutputError(cerr)
					}
				}()
				out = file
			}
			w := bufio.NewWriter(out)
			err = a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return conn.Audit(ctx, o, func(_ api.AuditRecord, line []byte) error { return writeLine(w, line) })
			})
			if ferr := w.Flush(); err == nil && ferr != nil {
				err = command.OutputError(ferr)
			}
			return err
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "write to this new `FILE` (default standard output)")
	f.register(c.Flags())
	return c
}

func writeLine(w io.Writer, line []byte) error {
	for _, p := range [][]byte{line, []byte("\n")} {
		if _, err := w.Write(p); err != nil {
			return command.OutputError(err)
		}
	}
	return nil
}

func auditUsageCommand(a *command.CLI) *cobra.Command {
	var f auditFilter
	var label string
	c := &cobra.Command{
		Use:   "usage [flags]",
		Short: "Sum the resource use of ended sandboxes",
		Long: `Sum the resource use of ended sandboxes by tenant, and with --label by the
values of a label: CPU time, memory by time (the limit in force), and time.`,
		Example: "  cloche audit usage --since 720h\n  cloche audit usage --label team --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.options(time.Now())
			if err != nil {
				return err
			}
			if o.After > 0 {
				return api.Invalid("since", "--since %s is the number of a record", terminal.Clip(f.since)).WithHint("give a time or a duration")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				u, err := conn.AuditUsage(ctx, api.AuditUsageOptions{Since: o.Since, Until: o.Until, Tenant: o.Tenant, Label: label})
				if err != nil {
					return err
				}
				return usageTable(a, u, label)
			})
		},
	}
	c.Flags().StringVar(&label, "label", "", "sum by the values of the label with this `KEY`")
	c.Flags().StringVar(&f.since, "since", "", "only sandboxes that ended from this `TIME|DURATION` on")
	c.Flags().StringVar(&f.until, "until", "", "only sandboxes that ended before this `TIME|DURATION`")
	c.Flags().StringVar(&f.o.Tenant, "tenant", "", "only of this `TENANT`")
	return c
}

func usageTable(a *command.CLI, u api.AuditUsage, label string) error {
	if a.JSON {
		u.Rows = append([]api.AuditUsageRow{}, u.Rows...)
		return a.PrintJSON(u)
	}
	head := []string{"TENANT", "SANDBOXES", "CPU-SECONDS", "GIB-SECONDS", "SECONDS", "IN", "OUT"}
	if label != "" {
		head = slices.Insert(head, 1, strings.ToUpper(terminal.Printable(label)))
	}
	var rows [][]string
	var partial int64
	for _, r := range u.Rows {
		row := []string{
			r.Tenant, strconv.FormatInt(r.Sandboxes, 10), fmt.Sprintf("%.3f", r.CPUSeconds), fmt.Sprintf("%.1f", r.GiBSeconds),
			fmt.Sprintf("%.1f", r.Seconds), command.FormatSize(r.BytesIn), command.FormatSize(r.BytesOut),
		}
		if label != "" {
			row = slices.Insert(row, 1, r.Label)
		}
		rows = append(rows, row)
		partial += r.Partial
	}
	if err := command.WriteTable(a.Stdio.Out, head, rows); err != nil {
		return command.OutputError(err)
	}
	if partial > 0 {
		a.Note("sandboxes of which a part could not be measured, and counts as 0: %d", partial)
	}
	return nil
}

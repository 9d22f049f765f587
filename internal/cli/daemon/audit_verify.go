package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

func auditVerifyCommand(a *command.CLI) *cobra.Command {
	var anchors []string
	var o api.AuditVerifyOptions
	c := &cobra.Command{
		Use:   "verify [flags] [HOME|FILE|-]",
		Short: "Verify the audit log",
		Long: `Verify that the log was not changed. Otherwise name the first bad record and
exit with 1. Without an argument the daemon reads its own log. A home directory,
or a file or standard input from "cloche audit export", needs no daemon.

The chain proves that no record was changed, removed or moved. It doesn't prove
this against an attacker who can write the whole home and so another chain. An
anchor does: keep the last number and hash, which this command prints,
elsewhere, and pass them to --anchor later.`,
		Example: "  cloche audit verify\n  cloche audit verify --anchor 1200:0d6a… /var/lib/cloche\n  cloche audit export | cloche audit verify -",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Exactly(1, "one home or file, or none")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			for _, text := range anchors {
				anchor, err := parseAnchor(text)
				if err != nil {
					return err
				}
				o.Anchors = append(o.Anchors, anchor)
			}
			if o.Accept < 0 {
				return api.Invalid("accept", "--accept %d is no record", o.Accept).WithHint("give the number of a record")
			}
			if len(args) == 1 {
				ctx, cancel := command.Interruptible(c.Context())
				defer cancel()
				r, err := verifyHere(ctx, a, args[0], o)
				if err != nil {
					return err
				}
				return auditReport(a, r)
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				r, err := conn.VerifyAudit(ctx, o)
				if err != nil {
					return err
				}
				return auditReport(a, r)
			})
		},
	}
	c.Flags().StringArrayVar(&anchors, "anchor", nil, "an anchor from an earlier run, `SEQ:HASH` (repeatable)")
	c.Flags().Int64Var(&o.Accept, "accept", 0, "report problems up to the record `SEQ` as notes")
	return c
}

func parseAnchor(text string) (api.AuditAnchor, error) {
	n, hash, ok := strings.Cut(text, ":")
	seq, err := strconv.ParseInt(n, 10, 64)
	if hash = strings.ToLower(hash); !ok || err != nil || seq < 1 || len(hash) != len(chain.Zero) || strings.Trim(hash, "0123456789abcdef") != "" {
		return api.AuditAnchor{}, api.Invalid("anchor", "--anchor %q is not valid", terminal.Clip(text)).
			WithHint(`write the number of a record and its whole hash, as "cloche audit verify" prints them`)
	}
	return api.AuditAnchor{Seq: seq, Hash: hash}, nil
}

// verifyHere reads files of this machine.
func verifyHere(ctx context.Context, a *command.CLI, path string, o api.AuditVerifyOptions) (api.AuditReport, error) {
	if path == "-" {
		return chain.VerifyReader(ctx, "standard input", a.Stdio.In, o)
	}
	info, err := os.Stat(path)
	if err != nil {
		return api.AuditReport{}, api.Invalid("file", "%w", err).WithHint("name a home, or a file that was exported")
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(path, chain.Active)); errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == chain.Dir {
			path = filepath.Dir(path)
		}
		return chain.VerifyHome(ctx, path, o)
	}
	f, err := os.Open(path)
	if err != nil {
		return api.AuditReport{}, api.Invalid("file", "%w", err).WithHint("name a home, or a file that was exported")
	}
	r, err := chain.VerifyReader(ctx, filepath.Base(path), io.Reader(f), o)
	return r, errors.Join(err, f.Close())
}

// exitTampered is the status of a verification that found a problem.
const exitTampered = 1

func auditReport(a *command.CLI, r api.AuditReport) error {
	if a.JSON {
		if err := a.PrintJSON(r); err != nil {
			return err
		}
	} else if err := auditReportText(a, r); err != nil {
		return command.OutputError(err)
	}
	if !r.OK {
		return command.StatusError(exitTampered)
	}
	return nil
}

func auditReportText(a *command.CLI, r api.AuditReport) error {
	var b strings.Builder
	where := func(f api.AuditFinding) string {
		switch {
		case f.File == "" || f.Line == 0:
			return ""
		default:
			return fmt.Sprintf(" (%s line %d)", f.File, f.Line)
		}
	}
	for _, f := range r.Notes {
		fmt.Fprintf(&b, "note: %s%s\n", terminal.Printable(f.Message), terminal.Printable(where(f)))
	}
	for i, f := range r.Problems {
		if i == 0 {
			fmt.Fprintf(&b, "first bad record: %d\n", f.Seq)
		}
		fmt.Fprintf(&b, "problem: %s%s\n", terminal.Printable(f.Message), terminal.Printable(where(f)))
	}
	if n := r.ProblemCount - int64(len(r.Problems)); n > 0 {
		fmt.Fprintf(&b, "and %d more problems\n", n)
	}
	verdict := "the chain is whole"
	if !r.OK {
		verdict = "the chain is broken"
	}
	fmt.Fprintf(&b, "%s: %d records, %d to %d (files: %d)\n", verdict, r.Records, r.First, r.Last, r.Segments)
	if r.OK && r.Last > 0 {
		fmt.Fprintf(&b, "anchor: %d:%s\n", r.Last, terminal.Printable(r.Hash))
	}
	_, err := io.WriteString(a.Stdio.Out, b.String())
	return err
}

package mockcore

import (
	"context"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// auditLines is what the audit log of a Core holds: the first record of a log.
const auditLines = `{"seq":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000","time":"2026-01-02T03:04:05Z","tenant":"","verb":"audit","chain":{"kind":"begin","segment":1},"hash":"1111111111111111111111111111111111111111111111111111111111111111"}
{"seq":2,"prev":"1111111111111111111111111111111111111111111111111111111111111111","time":"2026-01-02T03:04:05Z","tenant":"local","verb":"exec","sandbox":"sb-1","outcome":"ok","details":{"argv":"[\u003cb\u003e]"},"hash":"2222222222222222222222222222222222222222222222222222222222222222"}`

// Audit gives two lines, and the second for a verb "exec". Tenant "nobody" is
// refused.
func (c *Core) Audit(_ context.Context, _ core.Caller, o api.AuditOptions, fn func(line []byte) error) error {
	if o.Tenant == "nobody" {
		return api.Errorf(api.CodeDenied, "it is not for you").WithHint("ask")
	}
	for i, line := range strings.Split(auditLines, "\n") {
		if int64(i) < o.After || o.Verb == "exec" && i == 0 {
			continue
		}
		if err := fn([]byte(line)); err != nil {
			return err
		}
	}
	return nil
}

// VerifyAudit finds one problem and notes the anchors that it was given.
func (c *Core) VerifyAudit(_ context.Context, _ core.Caller, o api.AuditVerifyOptions) (api.AuditReport, error) {
	r := api.AuditReport{
		First: 1, Last: 2, Hash: strings.Repeat("0", 64), Records: 2, Segments: 1, UnchainedLines: 1, ProblemCount: 1,
		Problems: []api.AuditFinding{{Seq: 2, File: "audit.log", Line: 2, Message: "record 2 was changed"}},
	}
	for _, a := range o.Anchors {
		r.Notes = append(r.Notes, api.AuditFinding{Seq: a.Seq, Message: a.Hash})
	}
	return r, nil
}

// AuditUsage is one row.
func (c *Core) AuditUsage(_ context.Context, _ core.Caller, o api.AuditUsageOptions) (api.AuditUsage, error) {
	return api.AuditUsage{Rows: []api.AuditUsageRow{{Tenant: "local", Label: o.Label, Sandboxes: 2, CPUSeconds: 1.5, GiBSeconds: 2, Seconds: 3, Partial: 1}}}, nil
}

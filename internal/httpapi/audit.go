package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// auditLog serves the routes of the audit log.
type auditLog struct{ *Server }

func (s auditLog) routes() []route {
	return []route{
		{http.MethodGet, "/v1/audit", "read_audit", paceWait, s.audit},
		{http.MethodGet, "/v1/audit/verify", "verify_audit", paceWork, s.verifyAudit},
		{http.MethodGet, "/v1/audit/usage", "audit_usage", paceWork, s.auditUsage},
	}
}

// audit serves records as JSON lines, byte for byte as they are in the log, so that
// an export can be verified.
func (s auditLog) audit(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.AuditOptions{
		After: q.integer("after", 0, 0, 1<<62), Tail: int(q.integer("tail", 0, 0, 100_000)), Limit: int(q.integer("limit", 0, 0, 1<<31-1)),
		Since: q.time("since"), Until: q.time("until"),
		Tenant: q.str("tenant"), Sandbox: q.str("sandbox"), Verb: q.str("verb"), Outcome: q.str("outcome"), Follow: q.boolean("follow"),
	}
	if err := q.end(); err != nil {
		return err
	}
	return s.lines(w, r, o.Follow, func(ctx context.Context, lines *lineWriter) error {
		return s.core.Audit(ctx, r.caller, o, func(line []byte) error { return lines.write(json.RawMessage(line)) })
	})
}

func (s auditLog) verifyAudit(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.AuditVerifyOptions{Accept: q.integer("accept", 0, 0, 1<<62)}
	for _, text := range q.all("anchor") {
		n, hash, ok := strings.Cut(text, ":")
		seq, err := strconv.ParseInt(n, 10, 64)
		if !ok || err != nil || seq < 1 || !isHash(hash) {
			q.fail("anchor", "anchor %q is not valid", clip(text, 80)).WithHint("want the number of a record and its hash, such as 17:0123…")
			break
		}
		o.Anchors = append(o.Anchors, api.AuditAnchor{Seq: seq, Hash: hash})
	}
	if len(o.Anchors) > 1000 {
		q.fail("anchor", "there are %d anchors", len(o.Anchors)).WithHint("give at most 1000")
	}
	if err := q.end(); err != nil {
		return err
	}
	report, err := s.core.VerifyAudit(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// isHash is true for a SHA-256 as the log writes it.
func isHash(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

func (s auditLog) auditUsage(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.AuditUsageOptions{Since: q.time("since"), Until: q.time("until"), Tenant: q.str("tenant"), Label: q.str("label")}
	if err := q.end(); err != nil {
		return err
	}
	usage, err := s.core.AuditUsage(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	usage.Rows = nonNil(usage.Rows)
	writeJSON(w, http.StatusOK, usage)
	return nil
}

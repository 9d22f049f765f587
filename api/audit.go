package api

import "time"

// AuditRecord is one line of the audit log. Each record holds the hash of the previous one, so a
// line that was changed, removed or moved is detected.
type AuditRecord struct {
	// Seq counts the records of one home directory from 1.
	Seq int64 `json:"seq"`
	// Prev is the Hash of the previous record, or 64 zeros for the first record.
	Prev      string    `json:"prev"`
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"`
	Tenant    string    `json:"tenant"`
	// Caller identifies the caller in addition to the tenant, such as "unix uid 1000".
	Caller  string `json:"caller,omitempty"`
	Verb    string `json:"verb"`
	Sandbox string `json:"sandbox,omitempty"`
	// Outcome is "granted", "ok", "refused" or "failed". It is empty in records about the log
	// itself.
	Outcome string `json:"outcome,omitempty"`
	// Code is the code of the error, if there was one.
	Code Code `json:"code,omitempty"`
	// Rule is the rule that refused the request.
	Rule    string            `json:"rule,omitempty"`
	Details map[string]string `json:"details,omitempty"`
	// Truncated is set when a part of the record was too long and was cut.
	Truncated bool `json:"truncated,omitempty"`
	// Chain is a record about the log itself. The verb of such a record is AuditChainVerb.
	Chain *AuditFact `json:"chain,omitempty"`
	// Usage is what the sandbox used. Only the record of a sandbox's end has it.
	Usage *AuditUsed `json:"usage,omitempty"`
	// Hash is the SHA-256 of the line up to this field, in hexadecimal.
	Hash string `json:"hash"`
}

// AuditChainVerb is the verb of the records that the log writes about itself.
const AuditChainVerb = "audit"

// AuditFact is one event of the audit log itself.
type AuditFact struct {
	Kind AuditFactKind `json:"kind"`
	// Segment is the segment that begins, or the last segment that was removed.
	Segment int64 `json:"segment,omitempty"`
	// First and Last are the first and last record that were removed or are missing.
	First int64 `json:"first,omitempty"`
	Last  int64 `json:"last,omitempty"`
	// Hash is the hash of record Last when records were removed, and otherwise the SHA-256 of the
	// bytes that Bytes counts.
	Hash string `json:"hash,omitempty"`
	// Bytes and Lines count what is kept before this record outside the hash chain.
	Bytes int64 `json:"bytes,omitempty"`
	Lines int64 `json:"lines,omitempty"`
	// Count is the number of records that could not be written between Since and Until.
	Count int64      `json:"count,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Reason explains the event in one sentence.
	Reason string `json:"reason,omitempty"`
}

// AuditFactKind is the kind of an AuditFact.
type AuditFactKind string

// Kinds of facts.
const (
	// AuditBegin is the first record of a home directory.
	AuditBegin AuditFactKind = "begin"
	// AuditSegment is the first record of each later file.
	AuditSegment AuditFactKind = "segment"
	// AuditRemoved says up to which record old files were removed under the operator's retention
	// rule. The record is written before the removal and repeated in every later file.
	AuditRemoved AuditFactKind = "removed"
	// AuditGap counts records that could not be written.
	AuditGap AuditFactKind = "gap"
	// AuditTorn reports a line that a crash left incomplete.
	AuditTorn AuditFactKind = "torn"
	// AuditCut reports that the log is shorter than it was.
	AuditCut AuditFactKind = "cut"
	// AuditAnchorLost reports that the file that records the length of the log is missing.
	AuditAnchorLost AuditFactKind = "anchor_lost"
)

// AuditUsed is what one sandbox used from its creation to its end.
type AuditUsed struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	// GiBSeconds is memory multiplied by time. It uses the memory limit in force, if there was
	// one.
	GiBSeconds float64 `json:"gib_seconds"`
	Seconds    float64 `json:"seconds"`
	// BytesIn and BytesOut count the bytes that crossed the sandbox's network link.
	BytesIn  int64 `json:"bytes_in,omitempty"`
	BytesOut int64 `json:"bytes_out,omitempty"`
	// Partial is set when some value could not be measured. That value is 0.
	Partial bool              `json:"partial,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// AuditOptions selects audit records. A record must match every field that is set.
type AuditOptions struct {
	// After is the sequence number of the last record that the reader has.
	After int64
	// Tail selects only the last Tail matching records, 1 to 100 000; 0 selects all.
	Tail int
	// Limit is the page size; 0 means no limit. To get the next page, set After to the Seq of the
	// last record.
	Limit int
	// Since and Until limit the time range. A zero value is no limit.
	Since, Until time.Time
	// Tenant, Verb and Outcome must match exactly. Sandbox is an ID, or a name, which selects
	// every sandbox that had that name. A Sandbox without any record is an error with
	// CodeNotFound.
	Tenant, Sandbox, Verb, Outcome string
	// Follow continues with new records as they are written.
	Follow bool
}

// AuditVerifyOptions configures a verification.
type AuditVerifyOptions struct {
	// Anchors are hashes of records that were stored elsewhere earlier.
	Anchors []AuditAnchor
	// Accept is the sequence number up to which problems are already known. They are reported as
	// notes.
	Accept int64
}

// AuditAnchor is the sequence number of a record and its hash.
type AuditAnchor struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// AuditReport is the result of a verification.
type AuditReport struct {
	// OK is true when there are no problems.
	OK bool `json:"ok"`
	// First and Last are the sequence numbers of the first and the last record present.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Hash is the hash of the last record. Store it elsewhere together with Last, as an anchor.
	Hash     string `json:"hash"`
	Records  int64  `json:"records"`
	Segments int64  `json:"segments"`
	// UnchainedLines counts lines that are older than the hash chain.
	UnchainedLines int64 `json:"unchained_lines,omitempty"`
	// ProblemCount counts all problems, and Problems holds the first ones. The first problem
	// names the first bad record.
	ProblemCount int64          `json:"problem_count"`
	Problems     []AuditFinding `json:"problems,omitempty"`
	// Notes list what is recorded as lost or removed, and what cannot be checked.
	Notes []AuditFinding `json:"notes,omitempty"`
}

// AuditFinding is one finding of a verification.
type AuditFinding struct {
	// Seq is the sequence number of the record that is wrong or missing.
	Seq int64 `json:"seq"`
	// File is the name of the file. Line counts from 1 in that file.
	File    string `json:"file,omitempty"`
	Line    int64  `json:"line,omitempty"`
	Message string `json:"message"`
}

// AuditUsageOptions selects the usage to sum up.
type AuditUsageOptions struct {
	Since, Until time.Time
	Tenant       string
	// Label is the label key to group by, in addition to the tenant. Empty groups by tenant only.
	Label string
}

// AuditUsage is the usage of ended sandboxes.
type AuditUsage struct {
	Rows []AuditUsageRow `json:"rows"`
}

// AuditUsageRow is the sum for one tenant and, if a label was given, one value of the label.
type AuditUsageRow struct {
	Tenant     string  `json:"tenant"`
	Label      string  `json:"label,omitempty"`
	Sandboxes  int64   `json:"sandboxes"`
	CPUSeconds float64 `json:"cpu_seconds"`
	GiBSeconds float64 `json:"gib_seconds"`
	Seconds    float64 `json:"seconds"`
	BytesIn    int64   `json:"bytes_in"`
	BytesOut   int64   `json:"bytes_out"`
	// Partial counts the sandboxes with a value that could not be measured.
	Partial int64 `json:"partial,omitempty"`
}

// CurrentVerb returns the current name of a verb that had another name in an earlier version. Keys
// and the audit log keep the old names, and callers can still use them.
func CurrentVerb(verb string) string {
	switch verb {
	case "run_program":
		return "run_job"
	case "list_programs":
		return "list_jobs"
	case "get_program":
		return "get_job"
	case "cancel_program":
		return "cancel_job"
	case "continue_program":
		return "continue_job"
	}
	return verb
}

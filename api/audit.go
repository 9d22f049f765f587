package api

import "time"

// AuditRecord is one line of the audit log. Each holds the hash of the one
// before, so that a line which is changed, taken out or moved shows.
type AuditRecord struct {
	// Seq counts the records of one home from 1.
	Seq int64 `json:"seq"`
	// Prev is the Hash of the record before, 64 zeros for the first.
	Prev      string    `json:"prev"`
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"`
	Tenant    string    `json:"tenant"`
	// Caller says who it was beyond the tenant: "unix uid 1000".
	Caller  string `json:"caller,omitempty"`
	Verb    string `json:"verb"`
	Sandbox string `json:"sandbox,omitempty"`
	// Outcome is granted, ok, refused or failed; empty in records about the log.
	Outcome string `json:"outcome,omitempty"`
	// Code is the code of the error, if there was one.
	Code Code `json:"code,omitempty"`
	// Rule is the rule that refused.
	Rule    string            `json:"rule,omitempty"`
	Details map[string]string `json:"details,omitempty"`
	// Truncated is set when a part was too long and was cut.
	Truncated bool `json:"truncated,omitempty"`
	// Chain is what the log says of itself; its verb is AuditChainVerb.
	Chain *AuditFact `json:"chain,omitempty"`
	// Usage is what a sandbox used, in the record of its end.
	Usage *AuditUsed `json:"usage,omitempty"`
	// Hash is the SHA-256, in hexadecimal, of the line up to this field.
	Hash string `json:"hash"`
}

// AuditChainVerb is the verb of the records that the log writes about itself.
const AuditChainVerb = "audit"

// AuditFact is one thing that happened to the log itself.
type AuditFact struct {
	Kind AuditFactKind `json:"kind"`
	// Segment is the one that begins, or the last of those that were removed.
	Segment int64 `json:"segment,omitempty"`
	// First and Last are the records that were removed, or that are missing.
	First int64 `json:"first,omitempty"`
	Last  int64 `json:"last,omitempty"`
	// Hash is that of record Last when it was removed, and otherwise the SHA-256 of
	// the bytes that Bytes counts.
	Hash string `json:"hash,omitempty"`
	// Bytes and Lines are what stands unchained before this record.
	Bytes int64 `json:"bytes,omitempty"`
	Lines int64 `json:"lines,omitempty"`
	// Count is how many records could not be written, from Since to Until.
	Count int64      `json:"count,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Reason says why, in one sentence.
	Reason string `json:"reason,omitempty"`
}

// AuditFactKind is what happened to the log.
type AuditFactKind string

// The kinds of facts.
const (
	// AuditBegin is the first record of a home.
	AuditBegin AuditFactKind = "begin"
	// AuditSegment is the first record of every further file.
	AuditSegment AuditFactKind = "segment"
	// AuditRemoved tells how far old files were removed, by the operator's rule. The
	// record comes before the removal, and is repeated in every later file.
	AuditRemoved AuditFactKind = "removed"
	// AuditGap counts records that could not be written.
	AuditGap AuditFactKind = "gap"
	// AuditTorn is about a line that a crash left without its end.
	AuditTorn AuditFactKind = "torn"
	// AuditCut: the log was found shorter than it had been.
	AuditCut AuditFactKind = "cut"
	// AuditAnchorLost: what says how long the log had been was found missing.
	AuditAnchorLost AuditFactKind = "anchor_lost"
)

// AuditUsed is what one sandbox used from its create to its end.
type AuditUsed struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	// GiBSeconds is memory by time: the limit in force, where there was one.
	GiBSeconds float64 `json:"gib_seconds"`
	Seconds    float64 `json:"seconds"`
	// BytesIn and BytesOut crossed its network link.
	BytesIn  int64 `json:"bytes_in,omitempty"`
	BytesOut int64 `json:"bytes_out,omitempty"`
	// Partial is set when a part could not be measured, and is 0 for that.
	Partial bool              `json:"partial,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// AuditOptions choose records. Those of one field that is set must all match.
type AuditOptions struct {
	// After is the number of the last record that the reader has.
	After int64
	// Tail is only so many of the last that match, 1 to 100 000; 0 is all.
	Tail int
	// Limit is the size of a page; 0 is all. Next page: After the last one's Seq.
	Limit int
	// Since and Until bound the time; zero does not.
	Since, Until time.Time
	// Tenant, Verb and Outcome are compared whole. Sandbox is an id, or a name: then it is
	// all sandboxes that had it. One that no record is of is an error of CodeNotFound.
	Tenant, Sandbox, Verb, Outcome string
	// Follow goes on with what is recorded next.
	Follow bool
}

// AuditVerifyOptions say what a verification knows beforehand.
type AuditVerifyOptions struct {
	// Anchors are records that were noted elsewhere before.
	Anchors []AuditAnchor
	// Accept is the number of the last record up to which problems are known: they
	// are told as notes.
	Accept int64
}

// AuditAnchor is the number of a record and its hash.
type AuditAnchor struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// AuditReport is what a verification found.
type AuditReport struct {
	// OK: there are no problems.
	OK bool `json:"ok"`
	// First and Last are the numbers of the first and the last record that are there.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Hash is the last record's: note it elsewhere with Last, as an anchor.
	Hash     string `json:"hash"`
	Records  int64  `json:"records"`
	Segments int64  `json:"segments"`
	// UnchainedLines are older than the chain.
	UnchainedLines int64 `json:"unchained_lines,omitempty"`
	// ProblemCount counts all problems; Problems are the first of them. The first of
	// all names the first bad record.
	ProblemCount int64          `json:"problem_count"`
	Problems     []AuditFinding `json:"problems,omitempty"`
	// Notes are what is on record as lost or removed, and what cannot be checked.
	Notes []AuditFinding `json:"notes,omitempty"`
}

// AuditFinding is one thing that a verification found.
type AuditFinding struct {
	// Seq is the number of the record that is wrong or missing.
	Seq int64 `json:"seq"`
	// File is the name of the file, and Line counts in it from 1.
	File    string `json:"file,omitempty"`
	Line    int64  `json:"line,omitempty"`
	Message string `json:"message"`
}

// AuditUsageOptions choose what usage is summed.
type AuditUsageOptions struct {
	Since, Until time.Time
	Tenant       string
	// Label is the key by whose values it is summed; empty is by tenant alone.
	Label string
}

// AuditUsage is a ledger of ended sandboxes.
type AuditUsage struct {
	Rows []AuditUsageRow `json:"rows"`
}

// AuditUsageRow is the sum of one tenant, and of one value of a label.
type AuditUsageRow struct {
	Tenant     string  `json:"tenant"`
	Label      string  `json:"label,omitempty"`
	Sandboxes  int64   `json:"sandboxes"`
	CPUSeconds float64 `json:"cpu_seconds"`
	GiBSeconds float64 `json:"gib_seconds"`
	Seconds    float64 `json:"seconds"`
	BytesIn    int64   `json:"bytes_in"`
	BytesOut   int64   `json:"bytes_out"`
	// Partial counts the sandboxes of which a part could not be measured.
	Partial int64 `json:"partial,omitempty"`
}

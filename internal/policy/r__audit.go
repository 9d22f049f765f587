package policy

import (
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// AuditRule says what the audit log records, how long it is kept, and who can read it.
type AuditRule struct {
	// Argv says how arguments are recorded. "redacted" (the default) removes what looks like a
	// credential, keeps up to 4 KiB, and adds a digest of everything. "hash" records the
	// program's name, the number of arguments and the digest. "full" records arguments unchanged.
	Argv string `yaml:"argv"`
	// OnFull is "refuse" (the default) to refuse operations that cannot be recorded, or "degrade"
	// to serve requests and count the missing records.
	OnFull string `yaml:"on_full"`
	// SegmentSize and SegmentAge say when a file is closed and the next one begins; 0 is 64MiB
	// and 24h.
	SegmentSize Size     `yaml:"segment_size"`
	SegmentAge  Duration `yaml:"segment_age"`
	// KeepSize and KeepFor limit the closed files; 0 keeps all.
	KeepSize Size     `yaml:"keep_size"`
	KeepFor  Duration `yaml:"keep_for"`
	// Tenants lists the tenants that can read the records of their own operations. "*" is every
	// tenant.
	Tenants []string `yaml:"tenants"`
}

const (
	auditArgvRedacted = "redacted"
	auditArgvHash     = "hash"
	auditArgvFull     = "full"

	auditRefuse  = "refuse"
	auditDegrade = "degrade"

	minSegmentSize = 128 << 10
	minSegmentAge  = Duration(time.Minute)
)

// AuditArgv returns how a command line is recorded: "redacted", "hash" or "full".
func (r Rules) AuditArgv() string {
	if r.Audit.Argv == "" {
		return auditArgvRedacted
	}
	return r.Audit.Argv
}

// AuditDegrades reports whether requests are served without a record when there is no space for
// one.
func (r Rules) AuditDegrades() bool { return r.Audit.OnFull == auditDegrade }

func ruleAudit(r Rules, report reporter) {
	a := r.Audit
	if !slices.Contains([]string{"", auditArgvRedacted, auditArgvHash, auditArgvFull}, a.Argv) {
		report(api.Invalid("audit.argv", "audit.argv %s is not known", show(a.Argv)).
			WithHint("write %q, %q or %q", auditArgvRedacted, auditArgvHash, auditArgvFull))
	}
	if !slices.Contains([]string{"", auditRefuse, auditDegrade}, a.OnFull) {
		report(api.Invalid("audit.on_full", "audit.on_full %s is not known", show(a.OnFull)).
			WithHint("write %q or %q", auditRefuse, auditDegrade))
	}
	if a.SegmentSize != 0 && a.SegmentSize < minSegmentSize {
		report(api.Invalid("audit.segment_size", "audit.segment_size is %d bytes", a.SegmentSize).WithHint("write 128KiB or more"))
	}
	if a.SegmentAge != 0 && a.SegmentAge < minSegmentAge {
		report(api.Invalid("audit.segment_age", "audit.segment_age is %s", time.Duration(a.SegmentAge)).WithHint("write 1m or more"))
	}
	for i, t := range a.Tenants {
		if t == "" {
			report(api.Invalid(at("audit.tenants", i), "%s is empty", at("audit.tenants", i)).
				WithHint(`name a tenant, or write "*" for every one`))
		}
	}
}

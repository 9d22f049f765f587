package policy

import (
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// AuditRule says what the audit log holds, how long, and who may read it.
type AuditRule struct {
	// Argv is "redacted" (or empty) for arguments without what looks like a
	// credential, up to 4 KiB, and a digest of all; "hash" for the program's name, the
	// number of arguments and the digest; "full" for arguments as they are.
	Argv string `yaml:"argv"`
	// OnFull is "refuse" (or empty), so that nothing is done without a record, or
	// "degrade", so that requests are served and the missing records counted.
	OnFull string `yaml:"on_full"`
	// SegmentSize and SegmentAge are when a file is closed and the next begun; 0 is
	// 64MiB and 24h.
	SegmentSize Size     `yaml:"segment_size"`
	SegmentAge  Duration `yaml:"segment_age"`
	// KeepSize and KeepFor bound the closed files; 0 keeps all.
	KeepSize Size     `yaml:"keep_size"`
	KeepFor  Duration `yaml:"keep_for"`
	// Tenants may read the records of what they did themselves; "*" is every one.
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

// AuditArgv is how a command line is recorded: "redacted", "hash" or "full".
func (r Rules) AuditArgv() string {
	if r.Audit.Argv == "" {
		return auditArgvRedacted
	}
	return r.Audit.Argv
}

// AuditDegrades is whether requests are served without a record when there is no
// room for one.
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

// AuthorizeAudit says whether caller may use a verb that reads the audit log, and
// whether it sees the records of every tenant or its own. Nobody but the operator
// sees any that the rules do not grant.
func AuthorizeAudit(caller Caller, verb Verb, rules Rules) (all bool, err error) {
	if caller.Operator {
		return true, nil
	}
	if err := AuthorizeHost(caller, verb); err != nil {
		return false, err
	}
	if caller.Tenant != "" && (slices.Contains(rules.Audit.Tenants, caller.Tenant) || slices.Contains(rules.Audit.Tenants, "*")) {
		return false, nil
	}
	e := api.Errorf(api.CodeDenied, "the audit log is for the operator, unless a rule grants a tenant its own records")
	e.Rule = "audit.tenants"
	return false, e.WithHint("the smallest rule that would allow it is `audit: {tenants: [%s]}`", bounded(caller.Tenant))
}

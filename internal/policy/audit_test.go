package policy_test

import (
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func TestAuditRules(t *testing.T) {
	r, err := rules.ParseRules([]byte("audit: {argv: hash, on_full: degrade, segment_size: 1MiB, segment_age: 1h, keep_size: 1GiB, keep_for: 24h, tenants: ['*']}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a := r.Audit; r.AuditArgv() != "hash" || !r.AuditDegrades() || a.SegmentSize != 1<<20 || time.Duration(a.SegmentAge) != time.Hour || a.KeepSize != 1<<30 || time.Duration(a.KeepFor) != 24*time.Hour {
		t.Errorf("%+v", a)
	}
	if none := (rules.Rules{}); none.AuditArgv() != "redacted" || none.AuditDegrades() {
		t.Error("the zero rules are not the strict ones")
	}
	for text, field := range map[string]string{
		"{argv: some}": "audit.argv", "{on_full: ignore}": "audit.on_full", "{segment_size: 1KiB}": "audit.segment_size",
		"{segment_age: 1s}": "audit.segment_age", "{tenants: ['']}": "audit.tenants[0]",
	} {
		_, err := rules.ParseRules([]byte("audit: " + text + "\n"))
		if api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %v, want %s", text, err, field)
		}
	}
	for _, tc := range []struct {
		caller policy.Caller
		verb   policy.Verb
		all    bool
		code   api.Code
	}{
		{policy.InProcessCaller(0), policy.VerbVerifyAudit, true, ""},
		{policy.TCPCaller(), policy.VerbReadAudit, false, ""},
		{policy.TCPCaller(), policy.VerbVerifyAudit, false, api.CodeDenied},
		{policy.Caller{}, policy.VerbReadAudit, false, api.CodeDenied},
	} {
		all, err := policy.AuthorizeAudit(tc.caller, tc.verb, r)
		if all != tc.all || err != nil && api.CodeOf(err) != tc.code || err == nil && tc.code != "" {
			t.Errorf("%+v: %t, %v", tc, all, err)
		}
	}
	if _, err := policy.AuthorizeAudit(policy.TCPCaller(), policy.VerbReadAudit, rules.Rules{}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("without a rule: %v", err)
	}
}

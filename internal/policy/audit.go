package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// AuthorizeAudit checks whether the caller can use an operation that reads the audit log, and
// returns whether it sees the records of every tenant or only its own. Except for the operator, a
// caller sees only the records that the rules grant.
func AuthorizeAudit(caller Caller, verb Verb, set rules.Rules) (all bool, err error) {
	if caller.Operator {
		return true, nil
	}
	if err := AuthorizeHost(caller, verb); err != nil {
		return false, err
	}
	if caller.Tenant != "" && (slices.Contains(set.Audit.Tenants, caller.Tenant) || slices.Contains(set.Audit.Tenants, "*")) {
		return false, nil
	}
	e := api.Errorf(api.CodeDenied, "the audit log is for the operator, unless a rule grants a tenant its own records")
	e.Rule = "audit.tenants"
	return false, e.WithHint("the smallest rule that would allow it is `audit: {tenants: [%s]}`", rules.Shorten(caller.Tenant))
}

// Limits of what is recorded of a body.
const (
	defaultCapture = 2 << 10
	maxCapture     = 8 << 10
)

// cleanEndpointAudit checks what is recorded of requests.
func cleanEndpointAudit(field string, e *api.Endpoint) *api.Error {
	a := e.Audit
	if a == nil {
		return nil
	}
	field = under(field, "audit")
	if e.Raw() {
		return api.Invalid(field, "endpoint %s passes bytes on, and %s is about requests", rules.Quote(e.Name), field).
			WithHint("leave it out, or write a target with http or https")
	}
	if rules.CaptureRank(a.Capture) == 0 {
		return api.Invalid(field+".capture", "%s.capture is %s", field, rules.Quote(a.Capture)).
			WithHint("write headers or body; the outline of each request is always on record")
	}
	if one := field + ".max_bytes"; a.MaxBytes < 0 || a.MaxBytes > maxCapture || a.MaxBytes > 0 && a.Capture != api.CaptureBody {
		return api.Invalid(one, "%s is %d", one, a.MaxBytes).WithHint("1 to %d with capture body; 0 is %d", maxCapture, defaultCapture)
	}
	if a.Capture == api.CaptureBody && a.MaxBytes == 0 {
		a.MaxBytes = defaultCapture
	}
	if n := len(a.RedactHeaders); n > maxEndpointHeaders {
		return rules.TooLarge(field+".redact_headers", "%s.redact_headers has %d names", field, n).WithHint("at most %d", maxEndpointHeaders)
	}
	for i, h := range a.RedactHeaders {
		if one := rules.ElementAt(field+".redact_headers", i); !headerToken(h) {
			return api.Invalid(one, "%s %s is not the name of a header", one, rules.Quote(h)).WithHint("such as X-Session")
		}
	}
	return nil
}

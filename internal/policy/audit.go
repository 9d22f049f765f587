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

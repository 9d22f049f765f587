package rule

import "fmt"

// The rules that are always there. A refusal names one of them, or the id of the
// operator's own rule that denied.
const (
	// RuleName: the name is in no rule.
	RuleName = "egress.name"
	// RulePort: the name is allowed, this port of it is not.
	RulePort = "egress.port"
	// RuleAddress: no name was given for the address.
	RuleAddress = "egress.address"
	// RulePrivate: the real address is not a public one.
	RulePrivate = "egress.private"
	// RuleAgree: the flow names another host than the one it was opened to, or none.
	RuleAgree = "egress.agree"
	// RuleProtocol: the protocol may not leave.
	RuleProtocol = "egress.protocol"
	// RuleRequest: an HTTP request that is malformed, or of a kind that would hide
	// what follows it.
	RuleRequest = "egress.request"
	// RuleSecret: the placeholder of a secret where the secret must not go.
	RuleSecret = "egress.secret"
	// RuleBudget: the bytes or connections of the sandbox are used up.
	RuleBudget = "egress.budget"
)

// Refusal is why something did not leave. It is an error, and what it says may be
// shown inside the sandbox.
type Refusal struct {
	// Rule is the rule that refused.
	Rule string `json:"rule"`
	// Reason is one sentence.
	Reason string `json:"reason"`
	// Allow is the smallest rule that would let it through, in text form; empty
	// where no allowing rule can.
	Allow string `json:"allow,omitempty"`
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

func deniedBy(id, host string) *Refusal {
	return &Refusal{Rule: id, Reason: fmt.Sprintf("%s is denied by the rule %s", host, quote(id))}
}

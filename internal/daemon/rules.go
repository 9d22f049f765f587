package daemon

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// CheckPolicy finds everything that is wrong with a policy file.
func CheckPolicy(data []byte) []api.PolicyProblem { return policy.CheckFile(data) }

// ExplainPolicy answers a question by a policy file alone.
func ExplainPolicy(data []byte, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	return policy.ExplainRules(data, q)
}

package policy

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// CheckFile finds all errors in a policy file, and warns of rules that have no effect because
// another rule takes precedence. The problems are in the order of the file, errors and warnings
// mixed. A file has no errors if and only if ParseRules accepts it.
func CheckFile(data []byte) []api.PolicyProblem {
	d := rules.ReadDocument(data)
	out := make([]api.PolicyProblem, 0, len(d.Errors))
	add := func(p rules.Problem, warning bool) {
		out = append(out, api.PolicyProblem{
			Line: p.Line, Column: p.Column, Warning: warning, Key: p.Err.Field, Message: p.Err.Message, Hint: p.Err.Hint,
		})
	}
	for _, p := range d.Errors {
		add(p, false)
	}
	if len(d.Errors) == 0 {
		shadowed(d.Rules, func(err *api.Error) { add(d.ProblemOf(err), true) })
	}
	slices.SortStableFunc(out, func(a, b api.PolicyProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

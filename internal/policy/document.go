package policy

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// CheckFile finds all errors in a policy file, and warns of rules that have no effect because
// another rule takes precedence. The problems are in the order of the file, errors and warnings
// mixed. A file has no errors if and only if ParseRules accepts it.
func CheckFile(data []byte) []api.PolicyProblem {
	d := readDocument(data)
	out := make([]api.PolicyProblem, 0, len(d.errors))
	add := func(p problem, warning bool) {
		out = append(out, api.PolicyProblem{
			Line: p.line, Column: p.column, Warning: warning, Key: p.err.Field, Message: p.err.Message, Hint: p.err.Hint,
		})
	}
	for _, p := range d.errors {
		add(p, false)
	}
	if len(d.errors) == 0 {
		shadowed(d.rules, func(err *api.Error) { add(problem{d.find(err.Field), err}, true) })
	}
	slices.SortStableFunc(out, func(a, b api.PolicyProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

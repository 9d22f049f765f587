//go:build linux

package role

import (
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

// rules are what a guard is told.
type rules refusal.Rules

// covering is the number of the rule that says what may be done at name: the
// longest of those that hold it.
func (r rules) covering(name string) (int, bool) {
	found, longest := -1, -1
	for i, rule := range r.Rules {
		if at := rule.At(); within(name, at) && len(at) > longest {
			found, longest = i, len(at)
		}
	}
	if found >= 0 && r.Rules[found].Access != api.AccessNone {
		// What is mounted below the rule is a matter of its own.
		for _, t := range r.Targets {
			if len(t) > longest && within(name, t) {
				return -1, false
			}
		}
	}
	return found, found >= 0
}

// below is a rule on something in the directory name, or on name itself.
func (r rules) below(name string) (int, bool) {
	found := -1
	for i, rule := range r.Rules {
		if within(rule.At(), name) && (found < 0 || rule.Access != api.AccessWrite && r.Rules[found].Access == api.AccessWrite) {
			found = i
		}
	}
	return found, found >= 0
}

// within is true for dir and what is below it.
func within(name, dir string) bool {
	rest, ok := strings.CutPrefix(name, dir)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(dir, "/"))
}

// Package pathrule makes the list of the rules on paths that a sandbox has.
package pathrule

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Of returns the rules on paths of a sandbox as its agent and its engine get them: always the same list. A rule is
// known later by its place in it.
func Of(info api.Sandbox) []agent.Rule {
	var rules []agent.Rule
	add := func(name, target string, readOnly bool, list []api.PathRule) {
		for _, r := range pinned(readOnly, list) {
			rules = append(rules, agent.Rule{
				Name:   name + ".rules[" + strconv.Itoa(r.of) + "]",
				Target: api.Bytes(target), Path: api.Bytes(r.Path), Access: r.Access, Make: !readOnly,
			})
		}
	}
	add("workspace", info.Workspace.Path, info.Workspace.ReadOnly, info.Workspace.Rules)
	for i, m := range info.Mounts {
		add("mounts["+strconv.Itoa(i)+"]", m.Target, m.ReadOnly, m.Rules)
	}
	// Those of a mount in another come after the other's.
	slices.SortStableFunc(rules, func(a, b agent.Rule) int { return strings.Compare(string(a.Target), string(b.Target)) })
	return rules
}

// Denial is what a rule on a path refused to a program of a sandbox. It comes from
// inside and is bounded.
type Denial struct {
	// Rule is the rule's place in the request; empty when there is nothing to tell
	// but how many more there were.
	Rule   string
	Access api.PathAccess
	// Mount is where the rule's mount is seen, and Path is relative to it.
	Mount, Path string
	// Op is what was tried: "open", "rename".
	Op string
	// Program is what the program calls itself, and UID its user inside.
	Program string
	UID     uint32
	// Missed is how many before this one are not told.
	Missed int64
}

// DenialOf is a report of an engine, with the rule that it means. A report without a rule of the list says only how many more
// there were.
func DenialOf(r engine.PathDenial, rules []agent.Rule) Denial {
	out := Denial{Missed: r.Missed}
	if r.Rule >= 0 && r.Rule < len(rules) {
		by := rules[r.Rule]
		out.Rule, out.Access, out.Mount = by.Name, by.Access, string(by.Target)
		out.Op, out.Path, out.Program, out.UID = r.Op, r.Path, r.Program, r.UID
	}
	return out
}

// pinnedRule is a rule, or one that keeps a directory above one in its place.
type pinnedRule struct {
	api.PathRule
	// of is the number of the rule that it is, or is for.
	of int
}

// pinned adds to sorted rules those that make a mount of each directory above one:
// with such a directory what is in it could be moved to where no rule covers it. In
// one that is not to be written nothing can be moved.
func pinned(readOnly bool, list []api.PathRule) []pinnedRule {
	seen := map[string]bool{}
	var out []pinnedRule
	for i, r := range list {
		var above []pinnedRule
		for dir := path.Dir(r.Path); dir != "." && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			if !readOnly && governing(list, dir) == api.AccessWrite {
				above = append(above, pinnedRule{api.PathRule{Path: dir, Access: api.AccessWrite}, i})
			}
		}
		slices.Reverse(above)
		seen[r.Path] = true
		out = append(append(out, above...), pinnedRule{r, i})
	}
	return out
}

// governing is the access that the longest of the rules above name gives to it,
// and to write where none does.
func governing(list []api.PathRule, name string) api.PathAccess {
	access, longest := api.AccessWrite, -1
	for _, r := range list {
		if strings.HasPrefix(name, r.Path+"/") && len(r.Path) > longest {
			access, longest = r.Access, len(r.Path)
		}
	}
	return access
}

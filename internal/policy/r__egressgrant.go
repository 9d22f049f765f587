package policy

import (
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// egressBy returns the key that sets the egress of a profile's sandboxes.
func (p *profile) egressBy() string {
	if p.egressRuled {
		return ruleName(p.name, "egress", "allow")
	}
	return byBuiltin + ":profiles." + p.name + ".egress.allow"
}

// defaultBundles returns the bundles of the built-in profiles with a network.
func defaultBundles() []EgressItem {
	var out []EgressItem
	for _, name := range []string{"pypi", "npm", "debian", "github-read"} {
		out = append(out, EgressItem{rule.Item{Bundle: name}})
	}
	return out
}

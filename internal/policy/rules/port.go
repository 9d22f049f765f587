package rules

import (
	"github.com/cloche-dev/cloche/api"
)

// The keys of PortRule in refusals.
const (
	RulePorts        = "ports.enabled"
	RulePortsPublic  = "ports.public"
	RulePortsPublish = "ports.publish"
	RulePortsMaxTTL  = "ports.max_ttl"
)

// PortRule is about ports of sandboxes that have a URL.
type PortRule struct {
	// Enabled is the main switch. Nil is true. It also applies to ports that are open.
	Enabled *bool `yaml:"enabled"`
	// Public are the tenants whose ports can be public: requests need no token. "*" is every
	// tenant. The operator needs no entry.
	Public []string `yaml:"public"`
	// Publish allows requests that arrive at another address of this machine than loopback. The
	// setting ports.listen names the addresses.
	Publish bool `yaml:"publish"`
	// MaxTTL is the longest time that a port can be open, and the default. 0 is no limit.
	MaxTTL Duration `yaml:"max_ttl"`
}

// IsEnabled reports whether ports can have a URL.
func (r PortRule) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }

// rulePorts checks PortRule.
func rulePorts(r Rules, report Reporter) {
	if r.Ports.MaxTTL < 0 {
		report(api.Invalid(RulePortsMaxTTL, "%s is negative", RulePortsMaxTTL).WithHint("leave it out for no limit, or write a duration such as 8h"))
	}
	for i, t := range r.Ports.Public {
		if t == "" {
			field := ElementAt(RulePortsPublic, i)
			report(api.Invalid(field, "%s is empty", field).WithHint("name a tenant, or write \"*\" for every tenant"))
		}
	}
}

package rules

import (
	"encoding/base64"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

const (
	// RuleSigned and ruleSkillWrite are the keys of SkillRule in refusals.
	RuleSigned = "skills.signed_by"
	// usualSkillBytes is the default limit of the disk space of a tenant's skills.
	usualSkillBytes = Gib
)

// SkillRule is about skills.
type SkillRule struct {
	// Write lets callers other than the operator have writable skills in sandboxes.
	Write bool `yaml:"write"`
	// SignedBy are minisign public keys. If there are any, sandboxes get only skills that one of
	// them has signed, and skills cannot be changed in place.
	SignedBy []string `yaml:"signed_by"`
	// MaxBytesPerTenant limits the disk space of each tenant's skills; 0 is 1GiB.
	MaxBytesPerTenant Size `yaml:"max_bytes_per_tenant"`
}

// ruleSkills checks SkillRule.
func ruleSkills(r Rules, report Reporter) {
	for i, key := range r.Skills.SignedBy {
		raw, err := base64.StdEncoding.DecodeString(key)
		if err != nil || len(raw) != 42 || !strings.HasPrefix(string(raw), "Ed") {
			report(api.Invalid(ElementAt(RuleSigned, i), "%s is no public key of minisign", ElementAt(RuleSigned, i)).
				WithHint("write the second line of minisign.pub, which begins with RW"))
		}
	}
	if r.Skills.MaxBytesPerTenant < 0 {
		report(api.Invalid("skills.max_bytes_per_tenant", "skills.max_bytes_per_tenant is negative").WithHint("leave it out for 1GiB"))
	}
}

// SkillBytes returns the limit of the disk space of one tenant's skills.
func (r Rules) SkillBytes() int64 {
	if r.Skills.MaxBytesPerTenant > 0 {
		return int64(r.Skills.MaxBytesPerTenant)
	}
	return usualSkillBytes
}

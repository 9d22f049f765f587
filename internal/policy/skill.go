package policy

import (
	"path"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const (
	// maxSkills is the maximum number of skills of a sandbox.
	maxSkills      = 128
	ruleSkillWrite = "skills.write"
)

// SkillFact is one skill of the caller's tenant.
type SkillFact struct {
	Name string
	// Dir is its directory on the host, which callers do not choose.
	Dir DirFact
	// SignedBy is the ID of the operator's key that signed its present content, or empty.
	SignedBy string
}

// DecideSkillChange decides whether a skill can be changed in place.
func DecideSkillChange(name string, set rules.Rules) error {
	if len(set.Skills.SignedBy) == 0 {
		return nil
	}
	return rules.Denied(rules.RuleSigned, "", "the skill %s cannot be changed in its place: the operator requires signed skills", rules.Quote(name)).
		WithHint("remove it, and install an archive with what was signed")
}

// Skills returns the granted skills, in the order of Spec.Skills.
func (p Permit) Skills() []HostDir { return slices.Clone(p.skills) }

// checkSkills decides which skills the sandbox has. It expands AllSkills to the existing names.
func checkSkills(d *decision) *api.Error {
	d.allSkills()
	if n := len(d.spec.Skills); n > maxSkills {
		return rules.TooLarge("skills", "there are %d skills", n).WithHint("at most %d; name those that the sandbox needs", maxSkills)
	}
	taken := map[string]string{}
	for i, m := range d.spec.Mounts {
		taken[m.Target] = rules.ElementAt("mounts", i) + ".target"
	}
	for i := range d.spec.Skills {
		field := rules.ElementAt("skills", i)
		dir, err := d.skill(field, &d.spec.Skills[i])
		if err != nil {
			return err
		}
		if by, dup := taken[dir.Target]; dup {
			return api.Invalid(field, "%s would be at %s, and so is %s", field, rules.Quote(dir.Target), by).WithHint("name each skill once, and mount nothing in its place")
		}
		taken[dir.Target] = field
		d.skills = append(d.skills, dir)
	}
	return nil
}

// allSkills replaces AllSkills by the names of all skills, except those that are listed too. It
// leaves out skills without a required signature.
func (d *decision) allSkills() {
	var out []api.SkillUse
	named := map[string]bool{}
	for _, use := range d.spec.Skills {
		named[use.Name] = true
	}
	for _, use := range d.spec.Skills {
		if use.Name != api.AllSkills {
			out = append(out, use)
			continue
		}
		for _, f := range d.facts.Skills {
			if !named[f.Name] && (f.SignedBy != "" || len(d.rules.Skills.SignedBy) == 0) {
				named[f.Name] = true
				out = append(out, api.SkillUse{Name: f.Name, Access: use.Access})
			}
		}
	}
	d.spec.Skills = out
}

// skill judges one skill.
func (d *decision) skill(field string, use *api.SkillUse) (HostDir, *api.Error) {
	if use.Access == "" {
		use.Access = api.AccessRead
	}
	if use.Access != api.AccessRead && use.Access != api.AccessWrite {
		return HostDir{}, api.Invalid(field+".access", "%s.access is %s", field, rules.Quote(string(use.Access))).
			WithHint("write %q or %q", api.AccessRead, api.AccessWrite)
	}
	if slices.Contains(d.profile.Locked, rules.FieldMountsReadOnly) && d.profile.MountsReadOnly && use.Access == api.AccessWrite {
		d.adjust(field+".access", string(use.Access), string(api.AccessRead), rules.KeyPath(d.profile.Name, "locked", rules.FieldMountsReadOnly))
		use.Access = api.AccessRead
	}
	i := slices.IndexFunc(d.facts.Skills, func(f SkillFact) bool { return f.Name == use.Name })
	if i < 0 || !api.ValidSkillName(use.Name) {
		e := api.Errorf(api.CodeNotFound, "there is no skill %s", rules.Quote(use.Name))
		e.Field = field + ".name"
		return HostDir{}, e.WithHint("cloche skill ls lists the ones that exist")
	}
	fact, write := d.facts.Skills[i], use.Access == api.AccessWrite
	signed := len(d.rules.Skills.SignedBy) > 0
	switch {
	case signed && write:
		return HostDir{}, rules.Denied(rules.RuleSigned, field+".access", "the skill %s was asked for to write, and the operator requires signed skills", rules.Quote(use.Name)).
			WithHint("ask for it to read")
	case signed && fact.SignedBy == "":
		return HostDir{}, rules.Denied(rules.RuleSigned, field+".name", "the skill %s is not as a key signed it that the operator trusts", rules.Quote(use.Name)).
			WithHint("install it with the files SKILL.sum and SKILL.sum.minisig from its author")
	case write && !d.caller.Operator && !d.rules.Skills.Write:
		return HostDir{}, rules.Denied(ruleSkillWrite, field+".access", "the skill %s was asked for to write, and no rule grants that", rules.Quote(use.Name)).
			WithHint("ask for it to read; the smallest rule that would allow it is `skills: {write: true}`")
	}
	return HostDir{
		Asked: "of the skill " + use.Name, Real: fact.Dir.Real, Target: path.Join(d.spec.Workspace.Path, api.SkillsDir, use.Name),
		ReadOnly: !write, OwnerUID: fact.Dir.OwnerUID, Dev: fact.Dir.Dev, Ino: fact.Dir.Ino,
	}, nil
}

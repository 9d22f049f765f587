package core

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/skill"
)

// SkillSource is a directory to create a skill from.
type SkillSource = skill.Source

// SkillFileOptions selects what SkillFiles lists.
type SkillFileOptions = skill.FileOptions

// errNoSkills is the error of a Service without a skill store.
func errNoSkills() *api.Error {
	return api.Errorf(api.CodeUnsupported, "there are no skills here").WithHint("ask a daemon")
}

// KeepSkills moves the caller's skills to another directory of the host, or to the daemon's own if
// base is empty. It is for the operator's own servers.
func (s *Service) KeepSkills(caller Caller, base string) {
	if s.opts.Skills != nil && caller.Operator {
		s.opts.Skills.Keep(caller.Tenant, base)
	}
}

// Skills returns the caller's skills, most recently changed first. With texts, it includes their
// instructions.
func (s *Service) Skills(ctx context.Context, caller Caller, texts bool) (api.SkillList, error) {
	if s.opts.Skills == nil {
		return api.SkillList{}, nil
	}
	l, err := s.opts.Skills.List(ctx, caller.Tenant)
	if !texts {
		for i := range l.Skills {
			l.Skills[i].Instructions = ""
		}
	}
	return l, err
}

// GetSkill returns one of the caller's skills, and who signed it.
func (s *Service) GetSkill(ctx context.Context, caller Caller, name string) (api.Skill, error) {
	if s.opts.Skills == nil {
		return api.Skill{}, skill.Missing(name)
	}
	sk, err := s.opts.Skills.Get(ctx, caller.Tenant, name)
	if err != nil {
		return sk, err
	}
	sk.SignedBy, err = s.opts.Skills.Signed(ctx, caller.Tenant, name, signers(s.rules()))
	return sk, err
}

// ScanSkill reads the package in a directory of the caller's skills. With a source, it reads the
// package there, ignores dir, and returns a Dir relative to the source.
func (s *Service) ScanSkill(ctx context.Context, caller Caller, dir string, src *SkillSource) (api.Skill, error) {
	if s.opts.Skills == nil {
		return api.Skill{}, errNoSkills()
	}
	if src != nil {
		return skill.Look(ctx, *src)
	}
	return s.opts.Skills.Scan(ctx, caller.Tenant, dir)
}

// CreateSkill creates a skill from text, or from a copy of src.
func (s *Service) CreateSkill(ctx context.Context, caller Caller, spec api.SkillSpec, src *SkillSource) (sk api.Skill, err error) {
	err = s.skillVerb(ctx, caller, policy.VerbCreateSkill, spec.Name, func(d details) error {
		sk, err = s.opts.Skills.Create(ctx, caller.Tenant, spec, src, s.rules().SkillBytes())
		if err == nil {
			d["skill"] = sk.Name
		}
		return err
	})
	return sk, err
}

// UpdateSkill changes the description of a skill.
func (s *Service) UpdateSkill(ctx context.Context, caller Caller, name string, c api.SkillChange) (sk api.Skill, err error) {
	err = s.skillVerb(ctx, caller, policy.VerbChangeSkill, name, func(details) error {
		sk, err = s.opts.Skills.Update(ctx, caller.Tenant, name, c)
		return err
	})
	return sk, err
}

// RemoveSkill removes a skill. It is then empty in sandboxes that use it.
func (s *Service) RemoveSkill(ctx context.Context, caller Caller, name string) error {
	return s.skillVerb(ctx, caller, policy.VerbRemoveSkill, name, func(details) error {
		return s.opts.Skills.Remove(ctx, caller.Tenant, name)
	})
}

// SkillFiles lists a directory of a skill.
func (s *Service) SkillFiles(ctx context.Context, caller Caller, name string, o SkillFileOptions) (api.SkillFileList, error) {
	if s.opts.Skills == nil {
		return api.SkillFileList{}, skill.Missing(name)
	}
	return s.opts.Skills.Files(ctx, caller.Tenant, name, o)
}

// ReadSkillFile reads a text file of a skill.
func (s *Service) ReadSkillFile(ctx context.Context, caller Caller, name, file string) ([]byte, error) {
	if s.opts.Skills == nil {
		return nil, skill.Missing(name)
	}
	return s.opts.Skills.ReadFile(ctx, caller.Tenant, name, file)
}

// WriteSkillFile replaces a text file of a skill.
func (s *Service) WriteSkillFile(ctx context.Context, caller Caller, name, file string, content []byte) error {
	return s.skillVerb(ctx, caller, policy.VerbChangeSkill, name, func(d details) error {
		d["path"], d["bytes"] = bound(file), strconv.Itoa(len(content))
		return s.opts.Skills.WriteFile(ctx, caller.Tenant, name, file, content, s.rules().SkillBytes())
	})
}

// RemoveSkillFile removes a file or a directory of a skill.
func (s *Service) RemoveSkillFile(ctx context.Context, caller Caller, name, file string) error {
	return s.skillVerb(ctx, caller, policy.VerbChangeSkill, name, func(d details) error {
		d["path"] = bound(file)
		return s.opts.Skills.RemoveFile(ctx, caller.Tenant, name, file)
	})
}

// PreviewSkills lists the skills in an archive, and stores nothing.
func (s *Service) PreviewSkills(ctx context.Context, caller Caller, archive io.Reader, o api.SkillArchive) (api.SkillPreviewList, error) {
	if s.opts.Skills == nil {
		return api.SkillPreviewList{}, errNoSkills()
	}
	return s.opts.Skills.Preview(ctx, caller.Tenant, archive, o)
}

// InstallSkills installs the selected skills of an archive: all of them, or none on error.
func (s *Service) InstallSkills(ctx context.Context, caller Caller, archive io.Reader, o api.SkillArchive) (l api.SkillList, err error) {
	err = s.skillVerb(ctx, caller, policy.VerbCreateSkill, "", func(d details) error {
		l, err = s.opts.Skills.Install(ctx, caller.Tenant, archive, o, s.rules().SkillBytes())
		names := ""
		for _, sk := range l.Skills {
			names += " " + sk.Name
		}
		if names != "" {
			d["skill"] = names[1:]
		}
		return err
	})
	return l, err
}

// skillVerb runs an operation that changes skills: it checks permission and records it before and
// after.
func (s *Service) skillVerb(ctx context.Context, caller Caller, verb policy.Verb, name string, do func(details) error) error {
	d := details{}
	if name != "" {
		d["skill"] = bound(name)
	}
	var err error
	switch {
	case s.opts.Skills == nil:
		err = errNoSkills()
	case verb == policy.VerbChangeSkill:
		err = policy.DecideSkillChange(name, s.rules())
	}
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, err)
	}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	return s.done(ctx, caller, verb, "", d, do(d))
}

// signers returns the keys that the operator trusts. Policy has validated them.
func signers(rules rules.Rules) []skill.Signer {
	var out []skill.Signer
	for _, text := range rules.Skills.SignedBy {
		if k, err := skill.ParseSigner(text); err == nil {
			out = append(out, k)
		}
	}
	return out
}

// skillFacts returns what policy must know about the skills of a request.
func (s *Service) skillFacts(ctx context.Context, caller Caller, spec api.SandboxSpec, rules rules.Rules) ([]policy.SkillFact, error) {
	if len(spec.Skills) == 0 || s.opts.Skills == nil {
		return nil, nil
	}
	var places []skill.Place
	for _, use := range spec.Skills {
		if use.Name == api.AllSkills {
			all, err := s.opts.Skills.Places(ctx, caller.Tenant)
			if err != nil {
				return nil, err
			}
			places = all
			break
		}
		p, err := s.opts.Skills.Place(ctx, caller.Tenant, use.Name)
		if errors.Is(err, api.ErrNotFound) {
			continue // policy reports it
		}
		if err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	keys := signers(rules)
	out := make([]policy.SkillFact, 0, len(places))
	for _, p := range places {
		by, err := s.opts.Skills.Signed(ctx, caller.Tenant, p.Skill.Name, keys)
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			return nil, err
		}
		out = append(out, policy.SkillFact{
			Name: p.Skill.Name, SignedBy: by,
			Dir: policy.DirFact{Exists: true, Real: p.Path, Dir: true, OwnerUID: p.OwnerUID, Dev: p.Dev, Ino: p.Ino},
		})
	}
	return out, nil
}

package core

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/skill"
)

// SkillSource is a directory that is to become a skill.
type SkillSource = skill.Source

// SkillFileOptions choose what SkillFiles lists.
type SkillFileOptions = skill.FileOptions

// errNoSkills is what a Service without a store of skills answers.
func errNoSkills() *api.Error {
	return api.Errorf(api.CodeUnsupported, "there are no skills here").WithHint("ask a daemon")
}

// KeepSkills has the caller's skills lie below another directory of the host from now
// on; below the daemon's own where base is empty. It is for the operator's own servers.
func (s *Service) KeepSkills(caller Caller, base string) {
	if s.opts.Skills != nil && caller.Operator {
		s.opts.Skills.Keep(caller.Tenant, base)
	}
}

// Skills lists the caller's skills, the one changed last first; with texts, what
// each says to do.
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

// GetSkill reads one of the caller's skills, and who signed it.
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

// ScanSkill reads the one package in a directory of the caller's skills. With a source
// it reads the one in that, whatever dir is, and the package's Dir is relative to it.
func (s *Service) ScanSkill(ctx context.Context, caller Caller, dir string, src *SkillSource) (api.Skill, error) {
	if s.opts.Skills == nil {
		return api.Skill{}, errNoSkills()
	}
	if src != nil {
		return skill.Look(ctx, *src)
	}
	return s.opts.Skills.Scan(ctx, caller.Tenant, dir)
}

// CreateSkill makes a skill of text, or of a copy of src.
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

// UpdateSkill changes what a skill says of itself.
func (s *Service) UpdateSkill(ctx context.Context, caller Caller, name string, c api.SkillChange) (sk api.Skill, err error) {
	err = s.skillVerb(ctx, caller, policy.VerbChangeSkill, name, func(details) error {
		sk, err = s.opts.Skills.Update(ctx, caller.Tenant, name, c)
		return err
	})
	return sk, err
}

// RemoveSkill removes a skill. Sandboxes that have it find it empty.
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

// WriteSkillFile puts a text file of a skill in its place.
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

// PreviewSkills tells which skills an archive has, and keeps nothing of it.
func (s *Service) PreviewSkills(ctx context.Context, caller Caller, archive io.Reader, o api.SkillArchive) (api.SkillPreviewList, error) {
	if s.opts.Skills == nil {
		return api.SkillPreviewList{}, errNoSkills()
	}
	return s.opts.Skills.Preview(ctx, caller.Tenant, archive, o)
}

// InstallSkills puts skills of an archive in their places: all that were chosen, or
// none.
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

// skillVerb does what changes skills: permitted, on record before and after.
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

// signers are the keys that the operator trusts; policy has read them before.
func signers(rules policy.Rules) []skill.Signer {
	var out []skill.Signer
	for _, text := range rules.Skills.SignedBy {
		if k, err := skill.ParseSigner(text); err == nil {
			out = append(out, k)
		}
	}
	return out
}

// skillFacts are what policy must know of the skills that a request asks for.
func (s *Service) skillFacts(ctx context.Context, caller Caller, spec api.SandboxSpec, rules policy.Rules) ([]policy.SkillFact, error) {
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
			continue // policy says so
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

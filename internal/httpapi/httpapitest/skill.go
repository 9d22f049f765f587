package httpapitest

import (
	"context"
	"io"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// skillNamed is the one skill that there is, and whatever was made.
func skillNamed(caller core.Caller, name string) cloche.Skill {
	return cloche.Skill{
		Name: name, Tenant: caller.Tenant, DisplayName: name, Description: "Does it", Instructions: "Do it.", Dir: name, Entry: "SKILL.md",
		Meta: map[string]any{"license": "MIT"}, CreatedAt: Epoch(), UpdatedAt: Epoch(),
	}
}

func noSkill(name string) error {
	return cloche.Errorf(cloche.CodeNotFound, "there is no skill %q", name).WithHint("cloche skill ls lists the ones that exist")
}

// knownSkill refuses every name but "data".
func knownSkill(name string) error {
	if name != "data" {
		return noSkill(name)
	}
	return nil
}

// Skills lists "data", and a package that cannot be read.
func (c *Core) Skills(_ context.Context, caller core.Caller, texts bool) (cloche.SkillList, error) {
	sk := skillNamed(caller, "data")
	if !texts {
		sk.Instructions = ""
	}
	return cloche.SkillList{Skills: []cloche.Skill{sk}, Faults: []cloche.SkillFault{{Dir: "bad", Error: cloche.Errorf(cloche.CodeInvalid, "it cannot be read")}}}, nil
}

// GetSkill knows "data".
func (c *Core) GetSkill(_ context.Context, caller core.Caller, name string) (cloche.Skill, error) {
	return skillNamed(caller, name), knownSkill(name)
}

// CreateSkill makes anything that can be a name.
func (c *Core) CreateSkill(_ context.Context, caller core.Caller, spec cloche.SkillSpec, _ *core.SkillSource) (cloche.Skill, error) {
	if !cloche.ValidSkillName(spec.Name) {
		return cloche.Skill{}, cloche.Invalid("name", "the skill is called %q", spec.Name).WithHint("use letters")
	}
	return skillNamed(caller, spec.Name), nil
}

// UpdateSkill changes "data".
func (c *Core) UpdateSkill(_ context.Context, caller core.Caller, name string, change cloche.SkillChange) (cloche.Skill, error) {
	sk := skillNamed(caller, name)
	if change.Description != nil {
		sk.Description = *change.Description
	}
	return sk, knownSkill(name)
}

// RemoveSkill removes nothing.
func (c *Core) RemoveSkill(_ context.Context, _ core.Caller, name string) error {
	return knownSkill(name)
}

// SkillFiles lists what "data" holds.
func (c *Core) SkillFiles(_ context.Context, _ core.Caller, name string, o core.SkillFileOptions) (cloche.SkillFileList, error) {
	l := cloche.SkillFileList{Path: ".", Files: []cloche.SkillFile{{Path: "SKILL.md", Name: "SKILL.md", Type: cloche.TypeFile, Size: 6, ModTime: Epoch()}}}
	if o.Path != "" {
		l.Path = o.Path
	}
	return l, knownSkill(name)
}

// ReadSkillFile reads the one file.
func (c *Core) ReadSkillFile(_ context.Context, _ core.Caller, name, file string) ([]byte, error) {
	if file != "SKILL.md" {
		return nil, noSkill(file)
	}
	return []byte("Do it."), knownSkill(name)
}

// WriteSkillFile keeps nothing.
func (c *Core) WriteSkillFile(_ context.Context, _ core.Caller, name, _ string, _ []byte) error {
	return knownSkill(name)
}

// RemoveSkillFile removes nothing.
func (c *Core) RemoveSkillFile(_ context.Context, _ core.Caller, name, _ string) error {
	return knownSkill(name)
}

// PreviewSkills says that an archive has the skill "zed".
func (c *Core) PreviewSkills(_ context.Context, caller core.Caller, archive io.Reader, _ cloche.SkillArchive) (cloche.SkillPreviewList, error) {
	if err := someArchive(archive); err != nil {
		return cloche.SkillPreviewList{}, err
	}
	return cloche.SkillPreviewList{Skills: []cloche.SkillPreview{{Skill: skillNamed(caller, "zed"), Path: "a/zed"}}}, nil
}

// InstallSkills says that it installed that.
func (c *Core) InstallSkills(_ context.Context, caller core.Caller, archive io.Reader, o cloche.SkillArchive) (cloche.SkillList, error) {
	if err := someArchive(archive); err != nil {
		return cloche.SkillList{}, err
	}
	if len(o.Paths) > 0 && !slices.Contains(o.Paths, "a/zed") {
		return cloche.SkillList{}, cloche.Invalid("paths", "there is no skill at %q in the archive", o.Paths[0])
	}
	return cloche.SkillList{Skills: []cloche.Skill{skillNamed(caller, "zed")}}, nil
}

// someArchive takes whatever is not empty.
func someArchive(r io.Reader) error {
	if n, err := io.Copy(io.Discard, r); err != nil || n == 0 {
		return cloche.Errorf(cloche.CodeInvalid, "the archive cannot be used: it is empty")
	}
	return nil
}

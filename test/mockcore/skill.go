package mockcore

import (
	"context"
	"io"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// skillNamed is the one skill that there is, and whatever was made.
func skillNamed(caller core.Caller, name string) api.Skill {
	return api.Skill{
		Name: name, Tenant: caller.Tenant, DisplayName: name, Description: "Does it", Instructions: "Do it.", Dir: name, Entry: "SKILL.md",
		Meta: map[string]any{"license": "MIT"}, CreatedAt: Epoch(), UpdatedAt: Epoch(),
	}
}

func noSkill(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no skill %q", name).WithHint("cloche skill ls lists the ones that exist")
}

// knownSkill refuses every name but "data".
func knownSkill(name string) error {
	if name != "data" {
		return noSkill(name)
	}
	return nil
}

// Skills lists "data", and a package that cannot be read.
func (c *Core) Skills(_ context.Context, caller core.Caller, texts bool) (api.SkillList, error) {
	sk := skillNamed(caller, "data")
	if !texts {
		sk.Instructions = ""
	}
	return api.SkillList{Skills: []api.Skill{sk}, Faults: []api.SkillFault{{Dir: "bad", Error: api.Errorf(api.CodeInvalid, "it cannot be read")}}}, nil
}

// GetSkill knows "data".
func (c *Core) GetSkill(_ context.Context, caller core.Caller, name string) (api.Skill, error) {
	return skillNamed(caller, name), knownSkill(name)
}

// CreateSkill makes anything that can be a name.
func (c *Core) CreateSkill(_ context.Context, caller core.Caller, spec api.SkillSpec, _ *core.SkillSource) (api.Skill, error) {
	if !api.ValidSkillName(spec.Name) {
		return api.Skill{}, api.Invalid("name", "the skill is called %q", spec.Name).WithHint("use letters")
	}
	return skillNamed(caller, spec.Name), nil
}

// UpdateSkill changes "data".
func (c *Core) UpdateSkill(_ context.Context, caller core.Caller, name string, change api.SkillChange) (api.Skill, error) {
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
func (c *Core) SkillFiles(_ context.Context, _ core.Caller, name string, o core.SkillFileOptions) (api.SkillFileList, error) {
	l := api.SkillFileList{Path: ".", Files: []api.SkillFile{{Path: "SKILL.md", Name: "SKILL.md", Type: api.TypeFile, Size: 6, ModTime: Epoch()}}}
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
func (c *Core) PreviewSkills(_ context.Context, caller core.Caller, archive io.Reader, _ api.SkillArchive) (api.SkillPreviewList, error) {
	if err := someArchive(archive); err != nil {
		return api.SkillPreviewList{}, err
	}
	return api.SkillPreviewList{Skills: []api.SkillPreview{{Skill: skillNamed(caller, "zed"), Path: "a/zed"}}}, nil
}

// InstallSkills says that it installed that.
func (c *Core) InstallSkills(_ context.Context, caller core.Caller, archive io.Reader, o api.SkillArchive) (api.SkillList, error) {
	if err := someArchive(archive); err != nil {
		return api.SkillList{}, err
	}
	if len(o.Paths) > 0 && !slices.Contains(o.Paths, "a/zed") {
		return api.SkillList{}, api.Invalid("paths", "there is no skill at %q in the archive", o.Paths[0])
	}
	return api.SkillList{Skills: []api.Skill{skillNamed(caller, "zed")}}, nil
}

// someArchive takes whatever is not empty.
func someArchive(r io.Reader) error {
	if n, err := io.Copy(io.Discard, r); err != nil || n == 0 {
		return api.Errorf(api.CodeInvalid, "the archive cannot be used: it is empty")
	}
	return nil
}

package api

import (
	"time"
	"unicode"
)

// SkillsDir is where a sandbox has its skills, below the path of its workspace:
// each in a directory of its name.
const SkillsDir = ".skills"

// MaxSkillName is the longest name of a skill, in characters.
const MaxSkillName = 64

// ValidSkillName reports whether s may name a skill: 1 to 64 letters and digits of
// any script, '-' and '_'.
func ValidSkillName(s string) bool {
	n := 0
	for _, c := range s {
		if n++; n > MaxSkillName || c == unicode.ReplacementChar {
			return false
		}
		if c != '-' && c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c) {
			return false
		}
	}
	return n > 0
}

// Skill is a package of files with a SKILL.md, of which an agent reads what it can
// do and how.
type Skill struct {
	// Name is unique among the tenant's. See ValidSkillName.
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	// DisplayName is Name where the package gives none.
	DisplayName string `json:"display_name"`
	Description string `json:"description,omitempty"`
	// Instructions are the Markdown below the front matter; lists leave them out
	// unless they are asked for.
	Instructions string `json:"instructions,omitempty"`
	// Meta are the other keys of the front matter.
	Meta map[string]any `json:"meta,omitempty"`
	// Dir is the directory of the package, relative to the tenant's skills,
	// and Entry the file in it that describes it: SKILL.md or skill.md.
	Dir   string `json:"dir"`
	Entry string `json:"entry"`
	// PythonProject is true where the package says what it needs of Python.
	PythonProject bool `json:"python_project,omitempty"`
	// SignedBy is the id of the key that signed the package as it is, among those that
	// the operator trusts.
	SignedBy  string    `json:"signed_by,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// SkillList is the answer of GET /v1/skills, the one changed last first.
type SkillList struct {
	Skills []Skill `json:"skills"`
	// Faults are the packages that cannot be read.
	Faults []SkillFault `json:"faults,omitempty"`
}

// SkillFault is a package that cannot be read, and why.
type SkillFault struct {
	Dir   string `json:"dir"`
	Error *Error `json:"error"`
}

// SkillSpec is what a caller asks for when a skill is made of text.
type SkillSpec struct {
	Name         string `json:"name"`
	DisplayName  string `json:"display_name,omitempty"`
	Description  string `json:"description,omitempty"`
	Instructions string `json:"instructions,omitempty"`
}

// SkillChange changes what a skill says of itself; nil leaves a part as it is. What
// else the front matter says stays, to the byte.
type SkillChange struct {
	DisplayName  *string `json:"display_name,omitempty"`
	Description  *string `json:"description,omitempty"`
	Instructions *string `json:"instructions,omitempty"`
}

// SkillUse is one skill that a sandbox has, at SkillsDir below its workspace.
type SkillUse struct {
	// Name is the name of a skill of the caller's tenant, or AllSkills.
	Name string `json:"name"`
	// Access is AccessRead or AccessWrite; empty is AccessRead.
	Access PathAccess `json:"access,omitempty"`
}

// AllSkills in a SkillUse stands for every skill of the caller's tenant when the
// sandbox is created.
const AllSkills = "*"

// SkillFile is one file or directory of a skill.
type SkillFile struct {
	// Path is relative to the package, Name its last part.
	Path string   `json:"path"`
	Name string   `json:"name"`
	Type FileType `json:"type"`
	// Size is 0 for what is no file.
	Size       int64     `json:"size"`
	Executable bool      `json:"executable,omitempty"`
	ModTime    time.Time `json:"mod_time"`
}

// SkillFileList is what a directory of a skill holds, sorted by name.
type SkillFileList struct {
	// Path is the directory, "." for the package itself.
	Path  string      `json:"path"`
	Files []SkillFile `json:"files"`
	// Truncated says that there are more than were asked for.
	Truncated bool `json:"truncated,omitempty"`
}

// SkillArchive says what of a zip archive to take, and what to call it.
type SkillArchive struct {
	// Filename names the directories of packages: they begin with it, without its
	// extension. Empty is the name of each skill.
	Filename string `json:"filename,omitempty"`
	// Suffix ends the names of directories where Filename begins them.
	Suffix string `json:"suffix,omitempty"`
	// Subdir is the directory of the archive below which packages are looked for.
	Subdir string `json:"subdir,omitempty"`
	// Paths are those of the previews to install; empty is the only one that there is.
	Paths []string `json:"paths,omitempty"`
}

// SkillPreview is a skill that an archive has.
type SkillPreview struct {
	// Skill is as it would be; its Dir is where it would go.
	Skill
	// Path is the directory of the archive in which it is, "" its top.
	Path string `json:"path"`
	// Taken is true where a skill of this name, or its directory, is there already.
	Taken bool `json:"taken,omitempty"`
}

// SkillPreviewList is the answer of POST /v1/skills/preview, sorted by path.
type SkillPreviewList struct {
	Skills []SkillPreview `json:"skills"`
}

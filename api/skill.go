package api

import (
	"time"
	"unicode"
)

// SkillsDir is the directory below the workspace with the sandbox's skills. Each skill has a
// directory of its name.
const SkillsDir = ".skills"

// MaxSkillName is the maximum length of a skill's name, in characters.
const MaxSkillName = 64

// ValidSkillName reports whether s is a valid skill name: 1 to 64 letters and digits of any script,
// '-' and '_'.
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

// Skill is a package of files with a SKILL.md that tells an agent what it can do and how.
type Skill struct {
	// Name is unique in the tenant. See ValidSkillName.
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	// DisplayName is Name if the package does not set one.
	DisplayName string `json:"display_name"`
	Description string `json:"description,omitempty"`
	// Instructions are the Markdown after the front matter. Lists omit them unless they are
	// requested.
	Instructions string `json:"instructions,omitempty"`
	// Meta are the other keys of the front matter.
	Meta map[string]any `json:"meta,omitempty"`
	// Dir is the directory of the package, relative to the tenant's skill directory. Entry is the
	// file in it that describes the skill: SKILL.md or skill.md.
	Dir   string `json:"dir"`
	Entry string `json:"entry"`
	// PythonProject is true if the package declares its Python requirements.
	PythonProject bool `json:"python_project,omitempty"`
	// SignedBy is the ID of the operator-trusted key whose signature matches the package's
	// present content.
	SignedBy  string    `json:"signed_by,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// SkillList is the answer of GET /v1/skills, most recently changed first.
type SkillList struct {
	Skills []Skill `json:"skills"`
	// Faults lists the packages that cannot be read.
	Faults []SkillFault `json:"faults,omitempty"`
}

// SkillFault names a package that cannot be read, and the reason.
type SkillFault struct {
	Dir   string `json:"dir"`
	Error *Error `json:"error"`
}

// SkillSpec describes a skill to create from text.
type SkillSpec struct {
	Name         string `json:"name"`
	DisplayName  string `json:"display_name,omitempty"`
	Description  string `json:"description,omitempty"`
	Instructions string `json:"instructions,omitempty"`
}

// SkillChange changes the description of a skill. A nil field leaves that part unchanged. The rest
// of the front matter is kept byte for byte.
type SkillChange struct {
	DisplayName  *string `json:"display_name,omitempty"`
	Description  *string `json:"description,omitempty"`
	Instructions *string `json:"instructions,omitempty"`
}

// SkillUse makes a skill available in a sandbox, at SkillsDir below its workspace.
type SkillUse struct {
	// Name is the name of a skill of the caller's tenant, or AllSkills.
	Name string `json:"name"`
	// Access is AccessRead or AccessWrite; empty is AccessRead.
	Access PathAccess `json:"access,omitempty"`
}

// AllSkills in a SkillUse stands for every skill that the caller's tenant has when the sandbox is
// created.
const AllSkills = "*"

// SkillFile is one file or directory of a skill.
type SkillFile struct {
	// Path is relative to the package. Name is its last element.
	Path string   `json:"path"`
	Name string   `json:"name"`
	Type FileType `json:"type"`
	// Size is 0 for anything but a regular file.
	Size       int64     `json:"size"`
	Executable bool      `json:"executable,omitempty"`
	ModTime    time.Time `json:"mod_time"`
}

// SkillFileList is the content of a directory of a skill, sorted by name.
type SkillFileList struct {
	// Path is the directory. "." is the package's top directory.
	Path  string      `json:"path"`
	Files []SkillFile `json:"files"`
	// Truncated means that there are more files than requested.
	Truncated bool `json:"truncated,omitempty"`
}

// SkillArchive says which skills of a zip archive to install, and their directory names.
type SkillArchive struct {
	// Filename, without its extension, is the prefix of the package directories. If it is empty,
	// each directory has the name of its skill.
	Filename string `json:"filename,omitempty"`
	// Suffix is the suffix of directory names that begin with Filename.
	Suffix string `json:"suffix,omitempty"`
	// Subdir is the directory of the archive to search for packages.
	Subdir string `json:"subdir,omitempty"`
	// Paths selects the previews to install. Empty is allowed if there is only one.
	Paths []string `json:"paths,omitempty"`
}

// SkillPreview is a skill in an archive.
type SkillPreview struct {
	// Skill is the skill as it would be installed. Its Dir is the target directory.
	Skill
	// Path is its directory in the archive. "" is the top directory.
	Path string `json:"path"`
	// Taken is true if a skill with this name, or its directory, already exists.
	Taken bool `json:"taken,omitempty"`
}

// SkillPreviewList is the answer of POST /v1/skills/preview, sorted by path.
type SkillPreviewList struct {
	Skills []SkillPreview `json:"skills"`
}

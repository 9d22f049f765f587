package api

// Guidance describes a sandbox to a model whose tools work in it: as text for a system prompt, and
// as values.
type Guidance struct {
	Text string `json:"text"`
	// Sandbox is the ID of the sandbox that it describes. It is empty for a sandbox that would be
	// created with Profile.
	Sandbox string `json:"sandbox,omitempty"`
	Profile string `json:"profile"`
	// Workspace is the mount path of the workspace inside the sandbox. WorkspaceReadOnly says
	// that it is read-only, and WorkspaceKept that it is kept when the sandbox ends.
	Workspace         string `json:"workspace"`
	WorkspaceReadOnly bool   `json:"workspace_read_only,omitempty"`
	WorkspaceKept     bool   `json:"workspace_kept,omitempty"`
	Network           string `json:"network"`
	// Skills are the skills of the sandbox.
	Skills []GuidanceSkill `json:"skills,omitempty"`
	Limits Limits          `json:"limits"`
}

// GuidanceSkill describes one skill to a model.
type GuidanceSkill struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Path is the file inside the sandbox with the skill's instructions.
	Path string `json:"path"`
}

// GuidanceOptions selects the sandbox: an existing one, or one as it would be created.
type GuidanceOptions struct {
	// Sandbox is the ID or the name of an existing sandbox.
	Sandbox string
	// Profile is the profile of a sandbox that does not exist yet. Empty is the default profile.
	Profile string
	// AllSkills includes every skill of the caller's tenant.
	AllSkills bool
}

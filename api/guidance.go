package api

// Guidance is what to tell a model of the sandbox in which its tools work: text for a
// system prompt, and the same as values.
type Guidance struct {
	Text string `json:"text"`
	// Sandbox is the id of the one that it is about; empty is one that would be made
	// with Profile.
	Sandbox string `json:"sandbox,omitempty"`
	Profile string `json:"profile"`
	// Workspace is the path inside at which the workspace is mounted, and
	// WorkspaceReadOnly whether it can only be read. WorkspaceKept: it outlives the
	// sandbox.
	Workspace         string `json:"workspace"`
	WorkspaceReadOnly bool   `json:"workspace_read_only,omitempty"`
	WorkspaceKept     bool   `json:"workspace_kept,omitempty"`
	Network           string `json:"network"`
	// Skills are those that it has.
	Skills []GuidanceSkill `json:"skills,omitempty"`
	Limits Limits          `json:"limits"`
}

// GuidanceSkill is one skill as a model is told of it.
type GuidanceSkill struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Path is the file inside that says what to do.
	Path string `json:"path"`
}

// GuidanceOptions say of which sandbox: one that exists, or one as it would be made.
type GuidanceOptions struct {
	// Sandbox is the id or the name of one that exists.
	Sandbox string
	// Profile is for a sandbox that does not exist yet; empty is the default.
	Profile string
	// AllSkills has it made with every skill of the caller's.
	AllSkills bool
}

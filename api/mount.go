package api

// Mount mounts a directory of the host in the sandbox.
type Mount struct {
	// Source is an absolute path on the daemon's host. If it is missing and the mount is
	// writable, it is created, below a directory that policy allows.
	Source string `json:"source"`
	// Target is an absolute path inside the sandbox.
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Rules limit access below Target. The longest prefix that covers a path decides, and a path
	// that no rule covers has the mount's own access. In a mount with rules, changes made outside
	// the sandbox appear late or never while the sandbox runs, so replacing a file cannot expose
	// a hidden path.
	Rules []PathRule `json:"rules,omitempty"`
	// Globs are patterns for what a prefix cannot express. An engine that cannot enforce them
	// refuses the create.
	Globs []PathGlob `json:"globs,omitempty"`
}

// PathAccess is the access to a path.
type PathAccess string

// Access levels, weakest first. Inside the sandbox, any access below "none" fails with EACCES, and
// so does a change below "ro". File calls fail with CodeDenied. Both are recorded.
const (
	AccessNone  PathAccess = "none"
	AccessRead  PathAccess = "ro"
	AccessWrite PathAccess = "rw"
)

// PathRule sets the access to a directory or file of a mount and everything below it.
type PathRule struct {
	// Path is relative to the mount, such as "secrets" or "src/generated".
	Path   string     `json:"path"`
	Access PathAccess `json:"access"`
}

// PathGlob sets the access to the paths that match a pattern.
type PathGlob struct {
	// Pattern is relative to the mount: * matches within one path element, and ** matches any
	// number of elements, as in "**/.env".
	Pattern string     `json:"pattern"`
	Access  PathAccess `json:"access"`
}

package api

// Mount is one directory of the host, seen inside.
type Mount struct {
	// Source is an absolute path on the daemon's host. A missing one that is to be
	// writable is made, below a directory that policy grants.
	Source string `json:"source"`
	// Target is an absolute path inside.
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Rules narrow what may be done below Target. The longest prefix that covers a
	// path decides; a path that none covers has the mount's own access. Changes that
	// others make in a mount with rules are seen late or never while the sandbox
	// runs: nobody uncovers a path by putting another file there.
	Rules []PathRule `json:"rules,omitempty"`
	// Globs are patterns that a prefix cannot say. An engine that cannot enforce
	// them refuses the create.
	Globs []PathGlob `json:"globs,omitempty"`
}

// PathAccess is what may be done with a path.
type PathAccess string

// The accesses, weakest first. Inside, what is below "none" is EACCES to every
// program, and so is a change of what is "ro". Both are CodeDenied to a caller of the
// file calls, and all of it is on record.
const (
	AccessNone  PathAccess = "none"
	AccessRead  PathAccess = "ro"
	AccessWrite PathAccess = "rw"
)

// PathRule is the access to one directory or file of a mount and all below it.
type PathRule struct {
	// Path is relative to the mount: "secrets", "src/generated".
	Path   string     `json:"path"`
	Access PathAccess `json:"access"`
}

// PathGlob is the access to what matches a pattern.
type PathGlob struct {
	// Pattern is relative to the mount: * matches within one element, ** any
	// number of them: "**/.env".
	Pattern string     `json:"pattern"`
	Access  PathAccess `json:"access"`
}

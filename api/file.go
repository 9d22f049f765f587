package api

import "time"

// FileInfo describes one file inside a sandbox.
type FileInfo struct {
	// Name is the last element of the path. Names are bytes on Linux: one that
	// is not UTF-8 has its raw form in NameBytes and a readable one here.
	Name      string   `json:"name"`
	NameBytes []byte   `json:"name_bytes,omitempty"`
	Type      FileType `json:"type"`
	Size      int64    `json:"size"`
	Mode      uint32   `json:"mode"`
	UID       uint32   `json:"uid"`
	GID       uint32   `json:"gid"`
	// User and Group are what the image calls them; empty where it has no name for one, and
	// of files that are written.
	User    string    `json:"user,omitempty"`
	Group   string    `json:"group,omitempty"`
	ModTime time.Time `json:"mod_time"`
	// LinkTarget is set for a symlink.
	LinkTarget string `json:"link_target,omitempty"`
}

// FileAccess says as whom files are used, and where.
type FileAccess struct {
	// User is whose rights are used, as the kernel judges those of that user's programs: a
	// name of the image's, or UID[:GID]. What is made is that user's. Empty is no user of the
	// sandbox's: everything is allowed that the sandbox allows, and what is made is its user's.
	User string
	// Within are absolute directories. A path or symlink that leads out of them
	// is CodeDenied with RuleWithin. Empty, together with ReadWithin, is everywhere.
	Within []string
	// ReadWithin are such directories in which nothing is changed: that is CodeDenied with
	// RuleReadWithin. Of several that hold a path, in both lists, the deepest decides.
	ReadWithin []string
}

// IsZero is true for the default access.
func (a FileAccess) IsZero() bool {
	return a.User == "" && len(a.Within) == 0 && len(a.ReadWithin) == 0
}

// FilePlace is a path in a sandbox, and how it is used.
type FilePlace struct {
	// Path is absolute.
	Path string
	FileAccess
}

// The rules of errors that a FileAccess refused. It is the caller's own.
const (
	RuleWithin     = "within"
	RuleReadWithin = "read_within"
)

// MaxFileWithin is how many directories one FileAccess names.
const MaxFileWithin = 64

// MakeDirOptions say how a directory is made.
type MakeDirOptions struct {
	// Mode holds the permission bits; 0 is 0755.
	Mode uint32
	// Exact makes that directory alone: those above it must be there, and it must not.
	Exact bool
}

// RemoveFileOptions say what is removed.
type RemoveFileOptions struct {
	// Recursive removes a directory with what is in it.
	Recursive bool
	// KeepDirs refuses a directory, also an empty one.
	KeepDirs bool
}

// FileType is what kind of file it is.
type FileType string

// The types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileList is the content of one directory, sorted by name.
type FileList struct {
	Files []FileInfo `json:"files"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}

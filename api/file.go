package api

import "time"

// FileInfo describes one file inside a sandbox.
type FileInfo struct {
	// Name is the last element of the path. Names on Linux are bytes: for a name that is not
	// UTF-8, NameBytes holds the raw name, and Name a readable form.
	Name      string   `json:"name"`
	NameBytes []byte   `json:"name_bytes,omitempty"`
	Type      FileType `json:"type"`
	Size      int64    `json:"size"`
	Mode      uint32   `json:"mode"`
	UID       uint32   `json:"uid"`
	GID       uint32   `json:"gid"`
	// User and Group are the names that the image has for the owner. They are empty if the image
	// has none, and for files that are written.
	User    string    `json:"user,omitempty"`
	Group   string    `json:"group,omitempty"`
	ModTime time.Time `json:"mod_time"`
	// LinkTarget is set for a symlink.
	LinkTarget string `json:"link_target,omitempty"`
}

// FileAccess says as which user files are accessed, and in which directories.
type FileAccess struct {
	// User is the user whose permissions apply, as the kernel enforces them for that user's
	// programs: a user name of the image, or UID[:GID]. This user owns what is created. If User
	// is empty, the access has no user's permission checks: everything that the sandbox allows is
	// allowed, and the sandbox's user owns what is created.
	User string
	// Within lists absolute directories. A path or a symlink that leads out of them is CodeDenied
	// with RuleWithin. If both Within and ReadWithin are empty, every path is allowed.
	Within []string
	// ReadWithin lists directories like Within that are read-only. A change there is CodeDenied
	// with RuleReadWithin. If several directories of both lists contain a path, the deepest one
	// decides.
	ReadWithin []string
}

// IsZero reports whether a is the default access.
func (a FileAccess) IsZero() bool {
	return a.User == "" && len(a.Within) == 0 && len(a.ReadWithin) == 0
}

// FilePlace is a path in a sandbox and how to access it.
type FilePlace struct {
	// Path is absolute.
	Path string
	FileAccess
}

// Rules of errors for access that FileAccess refused. The caller itself set these limits.
const (
	RuleWithin     = "within"
	RuleReadWithin = "read_within"
)

// MaxFileWithin is the maximum number of directories in one FileAccess.
const MaxFileWithin = 64

// MakeDirOptions configures the creation of a directory.
type MakeDirOptions struct {
	// Mode holds the permission bits; 0 is 0755.
	Mode uint32
	// Exact creates only that directory: its parents must exist, and it must not exist.
	Exact bool
}

// RemoveFileOptions configures a removal.
type RemoveFileOptions struct {
	// Recursive removes a directory with its content.
	Recursive bool
	// KeepDirs refuses to remove a directory, even an empty one.
	KeepDirs bool
}

// FileType is the type of a file.
type FileType string

// File types.
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

// WatchOptions configures a watch of a directory.
type WatchOptions struct {
	// Recursive includes the directories below, and those that are created later. Symlinks are not
	// followed.
	Recursive bool
	// Entries adds information about the file to its changes.
	Entries bool
}

// FileChange is one change in a watched directory.
type FileChange struct {
	Kind FileChangeKind `json:"kind"`
	// Name is the path relative to the watched directory. It is empty for the directory itself. For a
	// path that is not UTF-8, NameBytes holds the raw path, and Name a readable form.
	Name      string `json:"name"`
	NameBytes []byte `json:"name_bytes,omitempty"`
	// Info describes the file after the change. It is missing without WatchOptions.Entries, and if
	// the file no longer exists.
	Info *FileInfo `json:"info,omitempty"`
}

// FileChangeKind says what happened to a file.
type FileChangeKind string

// Kinds of changes.
const (
	// FileReady comes first: the watch reports each change after it.
	FileReady FileChangeKind = "ready"
	// FileCreate is a new name. A move is a FileRename of the old name and a FileCreate of the new one.
	FileCreate FileChangeKind = "create"
	// FileWrite is new content. Several writes in a row may be one change.
	FileWrite  FileChangeKind = "write"
	FileRemove FileChangeKind = "remove"
	FileRename FileChangeKind = "rename"
	// FileChmod is a change of permissions, owner or times.
	FileChmod FileChangeKind = "chmod"
	// FileOverflow says that changes were lost: list the directory to see its present content.
	FileOverflow FileChangeKind = "overflow"
)

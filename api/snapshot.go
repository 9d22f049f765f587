package api

import "time"

// SnapshotScope says what a snapshot contains.
type SnapshotScope string

// Scopes of snapshots.
const (
	// SnapshotWorkspace contains the files of the workspace.
	SnapshotWorkspace SnapshotScope = "workspace"
	// SnapshotRoot contains the changes to the root filesystem.
	SnapshotRoot SnapshotScope = "root"
	// SnapshotFiles contains both.
	SnapshotFiles SnapshotScope = "files"
	// SnapshotMemory contains both, and the processes with their memory, /tmp and /dev/shm. A sandbox
	// that starts from it continues the processes.
	SnapshotMemory SnapshotScope = "memory"
)

// SnapshotRequest creates a snapshot of a sandbox. A snapshot never contains mounts. Only SnapshotMemory
// contains /tmp, /dev/shm and processes.
type SnapshotRequest struct {
	// Name must be unique among the tenant's snapshots. Empty is the new ID.
	Name string `json:"name,omitempty"`
	// Scope is the content of the snapshot. Empty is SnapshotFiles.
	Scope  SnapshotScope     `json:"scope,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Snapshot is the record of one snapshot.
type Snapshot struct {
	ID     string        `json:"id"`
	Name   string        `json:"name"`
	Tenant string        `json:"tenant"`
	Scope  SnapshotScope `json:"scope"`
	// Sandbox is the ID of the sandbox that it was made from.
	Sandbox string `json:"sandbox"`
	// Image and ImageDigest identify the root filesystem that it belongs to.
	Image       string `json:"image"`
	ImageDigest string `json:"image_digest,omitempty"`
	// WorkspacePath is where the workspace was mounted.
	WorkspacePath string `json:"workspace_path,omitempty"`
	// SizeBytes is the disk space that it uses. RootBytes, WorkspaceBytes and MemoryBytes are its parts.
	SizeBytes      int64 `json:"size_bytes"`
	RootBytes      int64 `json:"root_bytes,omitempty"`
	WorkspaceBytes int64 `json:"workspace_bytes,omitempty"`
	// MemoryBytes is the size of the memory, which includes the root. MemorySum is the SHA-256 sum that
	// identifies it in the audit log.
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	MemorySum   string `json:"memory_sum,omitempty"`
	// Consistent is true if the sandbox was paused while the snapshot was made, so that all files
	// are from the same moment.
	Consistent bool `json:"consistent"`
	// Left lists what was left out, and why: mounts, special files.
	Left      []TarSkip         `json:"left,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// SnapshotList is the answer of GET /v1/snapshots, newest first.
type SnapshotList struct {
	Snapshots []Snapshot `json:"snapshots"`
}

// ChangeKind is the kind of a change to a path.
type ChangeKind string

// Kinds of changes.
const (
	ChangeAdded   ChangeKind = "added"
	ChangeChanged ChangeKind = "changed"
	ChangeRemoved ChangeKind = "removed"
)

// Change is one path that a run changed.
type Change struct {
	// Path is relative to the workspace or the root, depending on the change.
	Path string `json:"path"`
	// PathBytes is the raw path if it is not UTF-8.
	PathBytes []byte     `json:"path_bytes,omitempty"`
	Kind      ChangeKind `json:"kind"`
	Type      FileType   `json:"type,omitempty"`
	// Size is the present size of a file. OldSize is its earlier size, if that is known without a
	// walk of the directory tree.
	Size    int64 `json:"size"`
	OldSize int64 `json:"old_size,omitempty"`
}

// DiffScope says where to look for changes.
type DiffScope string

// The scopes of a diff.
const (
	DiffWorkspace DiffScope = "workspace"
	DiffRoot      DiffScope = "root"
)

// DiffOptions selects a part of a diff.
type DiffOptions struct {
	// Scope says where to look. Empty is DiffWorkspace.
	Scope DiffScope
	// Limit is the page size, 1 to 10000; 0 is 1000.
	Limit int
	// Cursor is Diff.Next of the previous page.
	Cursor string
}

// Diff is one page of the changes of a sandbox, sorted by path.
type Diff struct {
	Scope   DiffScope `json:"scope"`
	Changes []Change  `json:"changes"`
	// Added, Changed and Removed are totals over all pages. Bytes is the total size of added and
	// changed files.
	Added   int64 `json:"added"`
	Changed int64 `json:"changed"`
	Removed int64 `json:"removed"`
	Bytes   int64 `json:"bytes"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}

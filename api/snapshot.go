package api

import "time"

// SnapshotScope is what a snapshot holds.
type SnapshotScope string

// The scopes.
const (
	// SnapshotWorkspace is the files of the workspace.
	SnapshotWorkspace SnapshotScope = "workspace"
	// SnapshotRoot is what was changed in the root filesystem.
	SnapshotRoot SnapshotScope = "root"
	// SnapshotFiles is both.
	SnapshotFiles SnapshotScope = "files"
)

// SnapshotRequest asks for a snapshot of a sandbox. Mounts, /tmp, /dev/shm and
// processes are in none.
type SnapshotRequest struct {
	// Name must be unique among the tenant's snapshots; empty is the new id.
	Name string `json:"name,omitempty"`
	// Scope is SnapshotFiles when it is empty.
	Scope  SnapshotScope     `json:"scope,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Snapshot is what is on record about one snapshot.
type Snapshot struct {
	ID     string        `json:"id"`
	Name   string        `json:"name"`
	Tenant string        `json:"tenant"`
	Scope  SnapshotScope `json:"scope"`
	// Sandbox is the id of the one that it was made of.
	Sandbox string `json:"sandbox"`
	// Image and ImageDigest are of the root filesystem that it belongs to.
	Image       string `json:"image"`
	ImageDigest string `json:"image_digest,omitempty"`
	// WorkspacePath is where the workspace was mounted.
	WorkspacePath string `json:"workspace_path,omitempty"`
	// SizeBytes is what it occupies; RootBytes and WorkspaceBytes are the parts.
	SizeBytes      int64 `json:"size_bytes"`
	RootBytes      int64 `json:"root_bytes,omitempty"`
	WorkspaceBytes int64 `json:"workspace_bytes,omitempty"`
	// Consistent is true when the sandbox was paused while it was made: all of it
	// is from one moment.
	Consistent bool `json:"consistent"`
	// Left names what of the sandbox is not in it, and why: mounts, special files.
	Left      []TarSkip         `json:"left,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// SnapshotList is the answer of GET /v1/snapshots, newest first.
type SnapshotList struct {
	Snapshots []Snapshot `json:"snapshots"`
}

// ChangeKind is what became of a path.
type ChangeKind string

// The kinds.
const (
	ChangeAdded   ChangeKind = "added"
	ChangeChanged ChangeKind = "changed"
	ChangeRemoved ChangeKind = "removed"
)

// Change is one path that a run changed.
type Change struct {
	// Path is relative to where the change is: the workspace, or the root.
	Path string `json:"path"`
	// PathBytes is the raw path when it is not UTF-8.
	PathBytes []byte     `json:"path_bytes,omitempty"`
	Kind      ChangeKind `json:"kind"`
	Type      FileType   `json:"type,omitempty"`
	// Size is the present size of a file, OldSize what it was before, where that is
	// known without a walk.
	Size    int64 `json:"size"`
	OldSize int64 `json:"old_size,omitempty"`
}

// DiffScope is where changes are looked for.
type DiffScope string

// The scopes of a diff.
const (
	DiffWorkspace DiffScope = "workspace"
	DiffRoot      DiffScope = "root"
)

// DiffOptions choose a part of a diff.
type DiffOptions struct {
	// Scope is DiffWorkspace when it is empty.
	Scope DiffScope
	// Limit is the size of a page, 1 to 10000; 0 is 1000.
	Limit int
	// Cursor is Diff.Next of the page before.
	Cursor string
}

// Diff is one page of what a run changed, sorted by path.
type Diff struct {
	Scope   DiffScope `json:"scope"`
	Changes []Change  `json:"changes"`
	// Added, Changed and Removed count all pages; Bytes is the size of what was
	// added and changed.
	Added   int64 `json:"added"`
	Changed int64 `json:"changed"`
	Removed int64 `json:"removed"`
	Bytes   int64 `json:"bytes"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}

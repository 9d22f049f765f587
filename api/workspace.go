package api

import "time"

// Workspace chooses the workspace. At most one of Name and Dir is set; with
// neither it is private to the sandbox and removed with it.
type Workspace struct {
	// Name is a workspace kept by the daemon; it is made when it does not exist.
	// One sandbox has it to write, or any number have it read-only.
	Name string `json:"name,omitempty"`
	// Dir is a directory of the host, under the same rules as Mount.Source.
	Dir string `json:"dir,omitempty"`
	// Path is where it is mounted; empty is DefaultWorkspacePath.
	Path     string `json:"path,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// SizeBytes and Inodes bound it; 0 is the profile's default, which for a private
	// one is a part of Limits.DiskBytes. For a named one that exists they must be what
	// it has, or 0.
	SizeBytes int64 `json:"size_bytes,omitempty"`
	Inodes    int64 `json:"inodes,omitempty"`
	// Quota says how a bound must hold; empty is QuotaHard for a bound that was asked
	// for, and for the default of a private one whatever holds it at no cost.
	Quota QuotaMode `json:"quota,omitempty"`
	// Drop removes a named workspace with the sandbox that had it to write.
	Drop bool `json:"drop,omitempty"`
	// Layered keeps what the sandbox writes apart from what was there before, until
	// it is committed or rolled back.
	Layered bool `json:"layered,omitempty"`
	// Enforced says, in answers, what holds the bound.
	Enforced QuotaHolder `json:"enforced,omitempty"`
	// Volume says, in answers, that it is a volume of the engine's, which shares no
	// files with the daemon: nothing bounds it, and it is in no snapshot.
	Volume bool `json:"volume,omitempty"`
	// Rules and Globs are as in Mount.
	Rules []PathRule `json:"rules,omitempty"`
	Globs []PathGlob `json:"globs,omitempty"`
}

// QuotaMode is how a bound must hold.
type QuotaMode string

// The modes.
const (
	// QuotaHard is enforced while a process writes, with ENOSPC; where nothing can
	// do that, the create is refused.
	QuotaHard QuotaMode = "hard"
	// QuotaMeasured is checked before and after each exec: too much before refuses
	// it, too much after removes the sandbox.
	QuotaMeasured QuotaMode = "measured"
	// QuotaWatched is for private ones, and is looked at while processes write: soon
	// after it holds too much, the sandbox is stopped.
	QuotaWatched QuotaMode = "watched"
)

// QuotaHolder is what holds a bound.
type QuotaHolder string

// What can hold one.
const (
	HeldByKernel  QuotaHolder = "kernel"
	HeldByEngine  QuotaHolder = "engine"
	HeldByMeasure QuotaHolder = "measured"
	HeldByWatch   QuotaHolder = "watched"
)

// QuotaPhase is when too much was found.
type QuotaPhase string

// The phases.
const (
	// QuotaBefore: nothing was run.
	QuotaBefore QuotaPhase = "before"
	// QuotaAfter: something was run, and the sandbox is being removed.
	QuotaAfter QuotaPhase = "after"
	// QuotaDuring: something runs, and the sandbox is being stopped.
	QuotaDuring QuotaPhase = "during"
)

// QuotaUnit is what there is too much of.
type QuotaUnit string

// The units.
const (
	QuotaBytes  QuotaUnit = "bytes"
	QuotaInodes QuotaUnit = "inodes"
)

// QuotaExcess says by how much a measured workspace is over its bound.
type QuotaExcess struct {
	Phase QuotaPhase `json:"phase"`
	Unit  QuotaUnit  `json:"unit"`
	// Used is what was counted until it was more than Limit: there may be more.
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// WorkspaceSpec is what a caller asks for when a workspace is made explicitly.
type WorkspaceSpec struct {
	// Name must be unique among the tenant's. See ValidName.
	Name string `json:"name"`
	// SizeBytes and Inodes bound it; 0 is the default profile's.
	SizeBytes int64             `json:"size_bytes,omitempty"`
	Inodes    int64             `json:"inodes,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// WorkspaceInfo is what is on record about one named workspace.
type WorkspaceInfo struct {
	Name   string            `json:"name"`
	Tenant string            `json:"tenant"`
	Labels map[string]string `json:"labels,omitempty"`
	// SizeBytes and Inodes are its bounds; 0 means unbounded.
	SizeBytes int64       `json:"size_bytes,omitempty"`
	Inodes    int64       `json:"inodes,omitempty"`
	Enforced  QuotaHolder `json:"enforced,omitempty"`
	// Engine is the one that keeps it as a volume; empty is that the daemon keeps it.
	Engine string `json:"engine,omitempty"`
	// UsedBytes and UsedInodes are what it holds; nil where that would take a walk.
	UsedBytes  *int64 `json:"used_bytes,omitempty"`
	UsedInodes *int64 `json:"used_inodes,omitempty"`
	// Sandboxes are the ids of those that have it now.
	Sandboxes []string  `json:"sandboxes,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// UsedAt is when a sandbox last took it.
	UsedAt *time.Time `json:"used_at,omitempty"`
	// State is empty for one that can be used. Any other can only be removed, and Reason
	// says why.
	State  WorkspaceState `json:"state,omitempty"`
	Reason string         `json:"reason,omitempty"`
}

// WorkspaceState says why a workspace cannot be used.
type WorkspaceState string

// The states. The files of both are kept until they are removed by name.
const (
	// WorkspaceFailed is one whose record cannot be read.
	WorkspaceFailed WorkspaceState = "failed"
	// WorkspaceOrphaned is a disk or a project that no record tells of. Its name is the id
	// that the workspace had.
	WorkspaceOrphaned WorkspaceState = "orphaned"
)

// WorkspaceList is the answer of GET /v1/workspaces, sorted by name.
type WorkspaceList struct {
	Workspaces []WorkspaceInfo `json:"workspaces"`
}

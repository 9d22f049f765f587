package api

import "time"

// Workspace selects the workspace. At most one of Name and Dir is set. If neither is set, the
// workspace is private to the sandbox and removed with it.
type Workspace struct {
	// Name is the name of a workspace that the daemon keeps. It is created if it does not exist.
	// One sandbox can have it writable, or any number can have it read-only.
	Name string `json:"name,omitempty"`
	// Dir is a directory of the host, under the same rules as Mount.Source.
	Dir string `json:"dir,omitempty"`
	// Path is the mount path. Empty is DefaultWorkspacePath.
	Path     string `json:"path,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// SizeBytes and Inodes limit its size. 0 is the profile's default, which for a private
	// workspace is a share of Limits.DiskBytes. For an existing named workspace they must be
	// equal to its limits, or 0.
	SizeBytes int64 `json:"size_bytes,omitempty"`
	Inodes    int64 `json:"inodes,omitempty"`
	// Quota says how the limit is enforced. Empty is QuotaHard for a requested limit. For the
	// default limit of a private workspace, empty is any mode that is available without extra
	// cost.
	Quota QuotaMode `json:"quota,omitempty"`
	// Drop removes a named workspace together with the sandbox that had it writable.
	Drop bool `json:"drop,omitempty"`
	// Layered keeps what the sandbox writes separate from the earlier content, until it is
	// committed or rolled back.
	Layered bool `json:"layered,omitempty"`
	// Enforced says, in answers, what enforces the limit.
	Enforced QuotaHolder `json:"enforced,omitempty"`
	// Volume says, in answers, that the workspace is a volume of the engine, which shares no
	// files with the daemon. It has no limit, and snapshots do not contain it.
	Volume bool `json:"volume,omitempty"`
	// Rules and Globs are as in Mount.
	Rules []PathRule `json:"rules,omitempty"`
	Globs []PathGlob `json:"globs,omitempty"`
}

// QuotaMode says how a limit is enforced.
type QuotaMode string

// Quota modes.
const (
	// QuotaHard is enforced on each write, with ENOSPC. If this is not possible, the create is
	// refused.
	QuotaHard QuotaMode = "hard"
	// QuotaMeasured is checked before and after each exec. Excess before the exec refuses it, and
	// excess after the exec removes the sandbox.
	QuotaMeasured QuotaMode = "measured"
	// QuotaWatched is for private workspaces. It is measured while processes write, and soon after the
	// workspace exceeds its limit the sandbox is stopped.
	QuotaWatched QuotaMode = "watched"
)

// QuotaHolder is what enforces a limit.
type QuotaHolder string

// Values of QuotaHolder.
const (
	HeldByKernel  QuotaHolder = "kernel"
	HeldByEngine  QuotaHolder = "engine"
	HeldByMeasure QuotaHolder = "measured"
	HeldByWatch   QuotaHolder = "watched"
)

// QuotaPhase is when an excess was found.
type QuotaPhase string

// Phases of a quota check.
const (
	// QuotaBefore means that no program was run.
	QuotaBefore QuotaPhase = "before"
	// QuotaAfter means that a program was run, and the sandbox is being removed.
	QuotaAfter QuotaPhase = "after"
	// QuotaDuring means that a program is running, and the sandbox is being stopped.
	QuotaDuring QuotaPhase = "during"
)

// QuotaUnit is the unit of a limit.
type QuotaUnit string

// Quota units.
const (
	QuotaBytes  QuotaUnit = "bytes"
	QuotaInodes QuotaUnit = "inodes"
)

// QuotaExcess says by how much a measured workspace exceeds its limit.
type QuotaExcess struct {
	Phase QuotaPhase `json:"phase"`
	Unit  QuotaUnit  `json:"unit"`
	// Used is what was counted until it exceeded Limit. There may be more.
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// WorkspaceSpec describes a workspace to create.
type WorkspaceSpec struct {
	// Name must be unique in the tenant. See ValidName.
	Name string `json:"name"`
	// SizeBytes and Inodes limit its size; 0 is the default profile's limit.
	SizeBytes int64             `json:"size_bytes,omitempty"`
	Inodes    int64             `json:"inodes,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// WorkspaceInfo is the record of one named workspace.
type WorkspaceInfo struct {
	Name   string            `json:"name"`
	Tenant string            `json:"tenant"`
	Labels map[string]string `json:"labels,omitempty"`
	// SizeBytes and Inodes are its limits; 0 is no limit.
	SizeBytes int64       `json:"size_bytes,omitempty"`
	Inodes    int64       `json:"inodes,omitempty"`
	Enforced  QuotaHolder `json:"enforced,omitempty"`
	// Engine is the engine that keeps it as a volume. It is empty if the daemon keeps it.
	Engine string `json:"engine,omitempty"`
	// UsedBytes and UsedInodes are its present usage. They are nil if they could only be found by
	// a walk of the directory tree.
	UsedBytes  *int64 `json:"used_bytes,omitempty"`
	UsedInodes *int64 `json:"used_inodes,omitempty"`
	// Sandboxes are the IDs of the sandboxes that use it now.
	Sandboxes []string  `json:"sandboxes,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// UsedAt is when a sandbox last started to use it.
	UsedAt *time.Time `json:"used_at,omitempty"`
	// State is empty for a usable workspace. A workspace in any other state can only be removed,
	// and Reason says why.
	State  WorkspaceState `json:"state,omitempty"`
	Reason string         `json:"reason,omitempty"`
}

// WorkspaceState says why a workspace cannot be used.
type WorkspaceState string

// States of a workspace that cannot be used. Its files are kept until it is removed by name.
const (
	// WorkspaceFailed means that its record cannot be read.
	WorkspaceFailed WorkspaceState = "failed"
	// WorkspaceOrphaned means that it is a disk or a project without a record. Its name is the
	// workspace's ID.
	WorkspaceOrphaned WorkspaceState = "orphaned"
)

// WorkspaceList is the answer of GET /v1/workspaces, sorted by name.
type WorkspaceList struct {
	Workspaces []WorkspaceInfo `json:"workspaces"`
}

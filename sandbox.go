package cloche

import "time"

// SandboxSpec is what a caller asks for. Zero values mean "the profile's
// default". The answer's Sandbox holds what was granted.
type SandboxSpec struct {
	// Name must be unique among the caller's live sandboxes; empty lets the
	// server choose one. See ValidName.
	Name string `json:"name,omitempty"`
	// Profile names a set of defaults, ceilings and locks; empty is DefaultProfile.
	Profile string `json:"profile,omitempty"`
	// Image is the root filesystem; empty is DefaultImage.
	Image string `json:"image,omitempty"`
	// Engine is "auto" (or empty) or the name of an engine.
	Engine string `json:"engine,omitempty"`
	// Network is "none" (or empty).
	Network string `json:"network,omitempty"`
	// Env is added to the environment of every process.
	Env map[string]string `json:"env,omitempty"`
	// User runs the processes: "name", "uid", "uid:gid"; empty is the image's.
	User string `json:"user,omitempty"`
	// Cwd is the absolute working directory of processes that name none; empty
	// is the workspace's path.
	Cwd string `json:"cwd,omitempty"`
	// Mounts are directories of the host.
	Mounts []Mount `json:"mounts,omitempty"`
	// Workspace is the directory that may outlive the sandbox; nil is a private
	// one at DefaultWorkspacePath that ends with it.
	Workspace *Workspace `json:"workspace,omitempty"`
	// Files are written before anything runs.
	Files []File `json:"files,omitempty"`
	// Limits bound what the sandbox may use.
	Limits Limits `json:"limits,omitzero"`
	// ReadOnlyRoot makes everything but the workspace, rw mounts, /tmp and
	// /dev/shm read-only; nil is the profile's.
	ReadOnlyRoot *bool `json:"read_only_root,omitempty"`
	// Labels are for audit, billing and list filters. They never decide anything.
	Labels map[string]string `json:"labels,omitempty"`
}

// Mount is one directory of the host, seen inside.
type Mount struct {
	// Source is an absolute path on the daemon's host.
	Source string `json:"source"`
	// Target is an absolute path inside.
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Workspace chooses the workspace. At most one of Name and Dir is set; with
// neither it is private to the sandbox and removed with it.
type Workspace struct {
	// Name is a workspace kept by the daemon; it is made when it does not exist.
	Name string `json:"name,omitempty"`
	// Dir is a directory of the host, under the same rules as Mount.Source.
	Dir string `json:"dir,omitempty"`
	// Path is where it is mounted; empty is DefaultWorkspacePath.
	Path     string `json:"path,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// File is one file to write at create.
type File struct {
	// Path is absolute; parents are made.
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// Mode holds the permission bits; 0 is 0644.
	Mode uint32 `json:"mode,omitempty"`
}

// Limits bound a sandbox. Zero is the profile's default. A limit that was asked
// for and cannot be enforced makes the create fail; a default that cannot be
// enforced is named in Sandbox.Unenforced.
type Limits struct {
	// CPUs is in cores: 0.5 is half of one.
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	// Pids bounds processes and threads together. The agent is not counted.
	Pids int64 `json:"pids,omitempty"`
	// DiskBytes bounds the writable layer of the root.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// TimeoutMS bounds every exec that names no timeout; 0 is unlimited.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutputBytes bounds what is kept of each output stream of an exec.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
}

// State is where a sandbox is in its life.
type State string

// The states, in the order in which a sandbox goes through them.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StateStopping State = "stopping"
	// StateStopped: nothing runs; record, logs and workspace are still there.
	StateStopped State = "stopped"
	// StateLost: the sandbox ended without being asked to.
	StateLost State = "lost"
	// StateFailed: it could not be created, or its teardown is being retried.
	StateFailed State = "failed"
)

// Sandbox is what is on record about one sandbox.
type Sandbox struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State State  `json:"state"`
	// Reason says why a sandbox is lost or failed.
	Reason  string `json:"reason,omitempty"`
	Tenant  string `json:"tenant"`
	Profile string `json:"profile"`
	Image   string `json:"image"`
	// ImageDigest identifies the exact root filesystem that is in use.
	ImageDigest string            `json:"image_digest,omitempty"`
	Engine      string            `json:"engine"`
	Tier        Tier              `json:"tier"`
	Network     string            `json:"network"`
	Env         map[string]string `json:"env,omitempty"`
	User        string            `json:"user,omitempty"`
	Cwd         string            `json:"cwd"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Workspace   Workspace         `json:"workspace"`
	// Limits are the ones in force.
	Limits       Limits            `json:"limits"`
	ReadOnlyRoot bool              `json:"read_only_root"`
	Labels       map[string]string `json:"labels,omitempty"`
	// Adjusted lists every value that a lock or a clamp changed.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Unenforced lists default limits that this machine cannot enforce, with why.
	Unenforced []Unenforced `json:"unenforced,omitempty"`
	CreatedAt  time.Time    `json:"created_at"`
	StoppedAt  *time.Time   `json:"stopped_at,omitempty"`
}

// Adjustment is one value that policy changed.
type Adjustment struct {
	Field string `json:"field"`
	Asked string `json:"asked"`
	Used  string `json:"used"`
	Rule  string `json:"rule"`
}

// Unenforced is one default limit that could not be applied.
type Unenforced struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// Tier is how strong the isolation is.
type Tier string

// The tiers, weakest first.
const (
	TierNone      Tier = "none"
	TierNamespace Tier = "namespace"
	TierGVisor    Tier = "gvisor"
	TierMicroVM   Tier = "microvm"
	TierRemote    Tier = "remote"
)

// SandboxList is one page of sandboxes, newest first.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}

// ListOptions choose sandboxes.
type ListOptions struct {
	// Labels must all be present with these values.
	Labels map[string]string
	// States is any of these; empty is all.
	States []State
	// Limit is the size of a page, 1 to 1000; 0 is 100.
	Limit int
	// Cursor is SandboxList.Next of the page before.
	Cursor string
}

// StopOptions are the body of stop.
type StopOptions struct {
	// GraceMS is how long processes may take to end after TERM; nil is 10 000.
	GraceMS *int64 `json:"grace_ms,omitempty"`
}

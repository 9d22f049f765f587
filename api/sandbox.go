package api

import "time"

// SandboxSpec is what a caller asks for. Zero values mean "the profile's
// default". The answer's Sandbox holds what was granted.
type SandboxSpec struct {
	// IdempotencyKey names the creation: of all creates of one tenant with one key a
	// single sandbox comes, and each is answered with it, however often they are
	// repeated and whatever became of the first answer. Other requests with the key
	// are CodeConflict. It is kept for as long as the sandbox is on record, and for
	// 24 hours after it was removed; a creation that fails leaves it free. See
	// ValidIdempotencyKey.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Name must be unique among the caller's live sandboxes; empty lets the
	// server choose one. See ValidName.
	Name string `json:"name,omitempty"`
	// Naming chooses the name by who asks.
	Naming
	// Profile names a set of defaults, ceilings and locks; empty is DefaultProfile.
	Profile string `json:"profile,omitempty"`
	// Image is the root filesystem; empty is DefaultImage.
	Image string `json:"image,omitempty"`
	// Pull says when Image is fetched from its registry; empty is PullMissing.
	Pull PullPolicy `json:"pull,omitempty"`
	// Snapshot is the id or the name of a snapshot that the sandbox begins with:
	// its image, unless Image names the same, and copies of the files that it holds.
	Snapshot string `json:"snapshot,omitempty"`
	// Engine is "auto" (or empty) or the name of an engine.
	Engine string `json:"engine,omitempty"`
	// Network is NetworkNone or NetworkOn; empty is the profile's, or NetworkOn where
	// Egress is given.
	Network string `json:"network,omitempty"`
	// Egress is what may leave over the network; nil is the profile's.
	Egress *Egress `json:"egress,omitempty"`
	// Env is added to the environment of every process.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are had by name from the operator's rules.
	Secrets []SecretUse `json:"secrets,omitempty"`
	// User runs the processes: "name", "uid", "uid:gid"; empty is the image's.
	User string `json:"user,omitempty"`
	// Cwd is the absolute working directory of processes that name none; empty is
	// the image's own, when it has one other than / and Workspace is private and at
	// its usual path, and otherwise the workspace's path.
	Cwd string `json:"cwd,omitempty"`
	// Mounts are directories of the host.
	Mounts []Mount `json:"mounts,omitempty"`
	// Workspace is the directory that may outlive the sandbox; nil is a private
	// one at DefaultWorkspacePath that ends with it.
	Workspace *Workspace `json:"workspace,omitempty"`
	// Skills are those of the caller's tenant that the sandbox has, each at SkillsDir
	// below its workspace.
	Skills []SkillUse `json:"skills,omitempty"`
	// Endpoints are services of the host at addresses of its loopback, with or
	// without a network.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Files are written before anything runs.
	Files []File `json:"files,omitempty"`
	// Limits bound what the sandbox may use.
	Limits Limits `json:"limits,omitzero"`
	// ReadOnlyRoot makes everything but the workspace, rw mounts, /tmp and
	// /dev/shm read-only; nil is the profile's. HOME, where nothing sets it, is then
	// below /tmp for a user whose home cannot be written.
	ReadOnlyRoot *bool `json:"read_only_root,omitempty"`
	// Labels are for audit, billing and list filters. They never decide anything.
	Labels map[string]string `json:"labels,omitempty"`
	// Persistent sandboxes survive an orderly shutdown of the daemon; nil is true.
	// Others are stopped then.
	Persistent *bool `json:"persistent,omitempty"`
	// Transient sandboxes are removed, with all they hold, when their lease ends
	// or the connection that holds them breaks. They need Limits.IdleMS, or a
	// connection that holds them.
	Transient bool `json:"transient,omitempty"`
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
	// DiskBytes bounds what the sandbox writes in all: to the writable layer of its root
	// and to its private workspace. Workspace.SizeBytes is the workspace's part of it.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// TmpBytes and ShmBytes bound /tmp and /dev/shm, which are memory and are
	// charged to MemoryBytes too.
	TmpBytes int64 `json:"tmp_bytes,omitempty"`
	ShmBytes int64 `json:"shm_bytes,omitempty"`
	// TimeoutMS bounds every exec that names no timeout; 0 is unlimited.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutputBytes bounds what is kept of each output stream of an exec.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// LifetimeMS ends the sandbox so long after it began to run, whatever it does.
	LifetimeMS int64 `json:"lifetime_ms,omitempty"`
	// IdleMS ends the sandbox when so long no call has used it. Calls under way and
	// attached clients count as use; lists, gets and processes without a client
	// do not.
	IdleMS int64 `json:"idle_ms,omitempty"`
}

// State is where a sandbox is in its life.
type State string

// The states, in the order in which a sandbox goes through them.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	// StatePaused: its processes, its idle time and the timeouts of its processes
	// are paused; its lifetime is not.
	StatePaused State = "paused"
	// StateStopping: it is being ended. Where that failed, Teardown says how and when
	// it is tried again.
	StateStopping State = "stopping"
	// StateStopped: nothing runs; record, logs and workspace are still there.
	StateStopped State = "stopped"
	// StateLost: the sandbox ended without being asked to.
	StateLost State = "lost"
	// StateFailed: it cannot be reached. It may live.
	StateFailed State = "failed"
	// StateDeleting: it is being removed, and is listed until nothing is left of it.
	// Where that failed, Teardown says how and when it is tried again.
	StateDeleting State = "deleting"
	// StateDeleted is in the last record of a sandbox, which the call that removed it
	// returns; no sandbox on record has it.
	StateDeleted State = "deleted"
)

// States lists the states that a sandbox on record can have, in the order in which
// it goes through them.
func States() []State {
	return []State{StateCreating, StateRunning, StatePaused, StateStopping, StateStopped, StateLost, StateFailed, StateDeleting}
}

// Over reports whether a sandbox in this state has ended.
func (s State) Over() bool { return s == StateStopped || s == StateLost || s == StateDeleted }

// Sandbox is what is on record about one sandbox.
type Sandbox struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State State  `json:"state"`
	// Reason says why a sandbox is lost or failed, or what stopped it without a
	// request.
	Reason string `json:"reason,omitempty"`
	// ObservedAt is when the state was last known to be so; only in answers that look at
	// a sandbox. It is older than the answer where its agent was asked and does not answer.
	ObservedAt time.Time `json:"observed_at,omitzero"`
	// TerminalReason is why it ended or is being ended.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// EndedBy is the tenant and the origin of the caller who requested the end; empty if none did.
	EndedBy string `json:"ended_by,omitempty"`
	// Teardown is how far its end is, when that did not succeed at once, and what was
	// left in the answer to a removal.
	Teardown *Teardown `json:"teardown,omitempty"`
	// IdempotencyKey is the one that it was created with.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	Tenant         string `json:"tenant"`
	Profile        string `json:"profile"`
	Image          string `json:"image"`
	// ImageDigest identifies the exact root filesystem that is in use.
	ImageDigest string `json:"image_digest,omitempty"`
	// Snapshot is the id of the snapshot that it began with.
	Snapshot string `json:"snapshot,omitempty"`
	Engine   string `json:"engine"`
	Tier     Tier   `json:"tier"`
	Network  string `json:"network"`
	// Egress is what may leave; nil where Network is NetworkNone.
	Egress *Egress `json:"egress,omitempty"`
	// Endpoints are those that it has now.
	Endpoints []Endpoint        `json:"endpoints,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	// Secrets are the ones that its processes have, without their values.
	Secrets   []SecretUse `json:"secrets,omitempty"`
	User      string      `json:"user,omitempty"`
	Cwd       string      `json:"cwd"`
	Mounts    []Mount     `json:"mounts,omitempty"`
	Workspace Workspace   `json:"workspace"`
	Skills    []SkillUse  `json:"skills,omitempty"`
	// Degraded says what the sandbox has lost that it was created with, such as its
	// network; empty is nothing.
	Degraded string `json:"degraded,omitempty"`
	// Limits are the ones in force.
	Limits       Limits            `json:"limits"`
	ReadOnlyRoot bool              `json:"read_only_root"`
	Labels       map[string]string `json:"labels,omitempty"`
	// Adjusted lists every value that a lock or a clamp changed.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Unenforced lists default limits that this machine cannot enforce, with why.
	Unenforced []Unenforced `json:"unenforced,omitempty"`
	Persistent bool         `json:"persistent"`
	Transient  bool         `json:"transient,omitempty"`
	CreatedAt  time.Time    `json:"created_at"`
	// QueueMS is how long its creation waited for its turn, StartMS how long it took
	// from then until it ran, an image that had to be fetched first not counted.
	QueueMS int64 `json:"queue_ms"`
	StartMS int64 `json:"start_ms"`
	// ExpiresAt is when its lease ends without further use.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
}

// MaxIdempotencyKey is the longest idempotency key, in bytes.
const MaxIdempotencyKey = 255

// ValidIdempotencyKey reports whether s may be one: 1 to 255 printable ASCII
// characters, no space among them.
func ValidIdempotencyKey(s string) bool {
	if s == "" || len(s) > MaxIdempotencyKey {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
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

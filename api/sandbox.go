package api

import "time"

// SandboxSpec describes the sandbox that a caller wants to create. A zero value means the profile's
// default. The returned Sandbox holds what was granted.
type SandboxSpec struct {
	// IdempotencyKey makes a create safe to repeat: every create by one tenant with the same key
	// returns the same sandbox. A different request with the same key is CodeConflict. The key is
	// kept for as long as the sandbox is on record and for 24 hours after its removal. A creation
	// that fails releases the key. See ValidIdempotencyKey.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Name must be unique among the tenant's live sandboxes. If it is empty, the server chooses
	// one. See ValidName.
	Name string `json:"name,omitempty"`
	// Naming selects the name by the identity of the request.
	Naming
	// Profile is the name of a set of defaults, ceilings and locks. Empty is DefaultProfile.
	Profile string `json:"profile,omitempty"`
	// Image is the root filesystem. Empty is DefaultImage.
	Image string `json:"image,omitempty"`
	// Pull says when Image is pulled from its registry. Empty is PullMissing.
	Pull PullPolicy `json:"pull,omitempty"`
	// Snapshot is the ID or the name of the snapshot that the sandbox starts from: with the
	// snapshot's image, unless Image names the same one, and copies of the files in it.
	Snapshot string `json:"snapshot,omitempty"`
	// Engine is "auto" (or empty) or the name of an engine.
	Engine string `json:"engine,omitempty"`
	// Network is NetworkNone or NetworkOn. Empty means the profile's value, or NetworkOn if
	// Egress is set.
	Network string `json:"network,omitempty"`
	// Egress says which connections can leave the sandbox. Nil means the profile's rules.
	Egress *Egress `json:"egress,omitempty"`
	// Env is added to the environment of every process.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are secrets of the operator's rules, by name.
	Secrets []SecretUse `json:"secrets,omitempty"`
	// User is the user of the processes: "name", "uid" or "uid:gid". Empty is the image's user.
	User string `json:"user,omitempty"`
	// Sudo lets processes of users other than root run commands as root, by the program sudo of
	// the image host. Without it they cannot get root's rights.
	Sudo bool `json:"sudo,omitempty"`
	// Cwd is the absolute working directory of processes that do not set one. Empty is the
	// image's working directory if that is not / and Workspace is private and at its default
	// path, and otherwise the workspace's path.
	Cwd string `json:"cwd,omitempty"`
	// Mounts are directories of the host to mount.
	Mounts []Mount `json:"mounts,omitempty"`
	// Workspace is the workspace, which can be kept when the sandbox is removed. Nil is a private
	// workspace at DefaultWorkspacePath that is removed with the sandbox.
	Workspace *Workspace `json:"workspace,omitempty"`
	// Skills are skills of the caller's tenant. Each is mounted at SkillsDir below the workspace.
	Skills []SkillUse `json:"skills,omitempty"`
	// Endpoints make services of the host available at addresses of the sandbox's loopback,
	// whatever its network is.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Files are written before any process runs.
	Files []File `json:"files,omitempty"`
	// Limits are the sandbox's resource limits.
	Limits Limits `json:"limits,omitzero"`
	// ReadOnlyRoot makes everything read-only except the workspace, rw mounts, /tmp and /dev/shm.
	// Nil means the profile's value. If HOME is not set and the user's home directory is not
	// writable, HOME is below /tmp.
	ReadOnlyRoot *bool `json:"read_only_root,omitempty"`
	// Labels are for audit, billing and list filters. They never affect permissions.
	Labels map[string]string `json:"labels,omitempty"`
	// Persistent keeps the sandbox running during an orderly shutdown of the daemon. Nil is true.
	// Other sandboxes are stopped then.
	Persistent *bool `json:"persistent,omitempty"`
	// Transient removes the sandbox with all its data when its lease ends or the connection that
	// holds it breaks. It requires Limits.IdleMS or such a connection.
	Transient bool `json:"transient,omitempty"`
	// OnExpiry is what happens when the idle time or the lifetime is over; empty is ExpiryStop.
	OnExpiry Expiry `json:"on_expiry,omitempty"`
	// AutoResume resumes the sandbox when it is suspended and a caller runs something in it, uses its files, its
	// processes or an open port. The caller waits for that. The resume has the rights of the creator of the sandbox.
	AutoResume bool `json:"auto_resume,omitempty"`
}

// Expiry is what happens to a sandbox when its idle time or its lifetime is over.
type Expiry string

const (
	// ExpiryStop stops the sandbox, and removes a transient one.
	ExpiryStop Expiry = "stop"
	// ExpirySuspend suspends the sandbox. Its idle time and its lifetime begin anew with a resume. If it cannot be
	// suspended, it runs for another idle time, and is stopped when its lifetime is over.
	ExpirySuspend Expiry = "suspend"
)

// File is a file to write during the create.
type File struct {
	// Path is absolute. Missing parent directories are created.
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// Mode holds the permission bits; 0 is 0644.
	Mode uint32 `json:"mode,omitempty"`
}

// Limits are the resource limits of a sandbox. Zero is the profile's default. If a requested limit
// cannot be enforced, the create fails. A default limit that cannot be enforced is listed in
// Sandbox.Unenforced.
type Limits struct {
	// CPUs is a number of cores, such as 0.5.
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	// Pids limits processes and threads together. The agent is not counted.
	Pids int64 `json:"pids,omitempty"`
	// DiskBytes limits all that the sandbox writes to the writable layer of its root and to its
	// private workspace. Workspace.SizeBytes is the workspace's share of it.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// TmpBytes and ShmBytes limit /tmp and /dev/shm. Both are in memory and also count towards
	// MemoryBytes.
	TmpBytes int64 `json:"tmp_bytes,omitempty"`
	ShmBytes int64 `json:"shm_bytes,omitempty"`
	// TimeoutMS limits every exec that does not set a timeout; 0 is unlimited.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutputBytes limits what is kept of each output stream of an exec.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// LifetimeMS ends the sandbox this long after it began to run, even while it is in use.
	LifetimeMS int64 `json:"lifetime_ms,omitempty"`
	// IdleMS ends the sandbox when no call has used it for this long. Calls in progress and
	// attached clients count as use. Lists and gets do not, and neither do processes without an
	// attached client.
	IdleMS int64 `json:"idle_ms,omitempty"`
}

// State is the state of a sandbox.
type State string

// States, in the order in which a sandbox goes through them.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	// StatePaused means that its processes are paused. Its idle time and the timeouts of its
	// processes are paused too, and its lifetime continues.
	StatePaused State = "paused"
	// StateSuspended means that its processes exist only on the disk, with their memory: it uses no memory
	// and no CPU. A resume continues them. Its idle time and the timeouts of its processes are paused too,
	// and its lifetime continues.
	StateSuspended State = "suspended"
	// StateStopping means that it is being stopped. If that failed, Teardown says why and when it
	// is retried.
	StateStopping State = "stopping"
	// StateStopped means that no process runs. Its record, logs and workspace still exist.
	StateStopped State = "stopped"
	// StateLost means that the sandbox ended without a request.
	StateLost State = "lost"
	// StateFailed means that it cannot be reached. It may still be running.
	StateFailed State = "failed"
	// StateDeleting means that it is being removed. It is listed until nothing is left of it. If
	// the removal failed, Teardown says why and when it is retried.
	StateDeleting State = "deleting"
	// StateDeleted is the state in the last record of a sandbox, which the call that removed it
	// returns. No listed sandbox has it.
	StateDeleted State = "deleted"
)

// States returns the states that a listed sandbox can have, in the order in which it goes through
// them.
func States() []State {
	return []State{StateCreating, StateRunning, StatePaused, StateSuspended, StateStopping, StateStopped, StateLost, StateFailed, StateDeleting}
}

// Held reports whether the processes of a sandbox in this state exist and do not run until a resume.
func (s State) Held() bool { return s == StatePaused || s == StateSuspended }

// Over reports whether a sandbox in this state has ended.
func (s State) Over() bool { return s == StateStopped || s == StateLost || s == StateDeleted }

// Sandbox is the record of one sandbox.
type Sandbox struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State State  `json:"state"`
	// Reason says why a sandbox is lost or failed, or why it stopped without a request.
	Reason string `json:"reason,omitempty"`
	// ObservedAt is when the state was last known to be current. It is only set in answers that
	// examine a sandbox. It is older than the answer if the sandbox's agent was asked and does
	// not answer.
	ObservedAt time.Time `json:"observed_at,omitzero"`
	// TerminalReason says why it ended or is being ended.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// EndedBy is the tenant and the origin of the caller that requested the end. It is empty if
	// no caller did.
	EndedBy string `json:"ended_by,omitempty"`
	// Teardown is the progress of a stop or removal that did not succeed at once. In the answer
	// to a removal, it says what was left.
	Teardown *Teardown `json:"teardown,omitempty"`
	// IdempotencyKey is the key that it was created with.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	Tenant         string `json:"tenant"`
	Profile        string `json:"profile"`
	Image          string `json:"image"`
	// ImageDigest identifies the exact root filesystem in use.
	ImageDigest string `json:"image_digest,omitempty"`
	// Snapshot is the ID of the snapshot that it started from.
	Snapshot string `json:"snapshot,omitempty"`
	Engine   string `json:"engine"`
	Tier     Tier   `json:"tier"`
	Network  string `json:"network"`
	// Egress is the egress rules. It is nil if Network is NetworkNone.
	Egress *Egress `json:"egress,omitempty"`
	// Endpoints are its present endpoints.
	Endpoints []Endpoint        `json:"endpoints,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	// Secrets are the secrets of its processes, without values.
	Secrets   []SecretUse `json:"secrets,omitempty"`
	User      string      `json:"user,omitempty"`
	Sudo      bool        `json:"sudo,omitempty"`
	Cwd       string      `json:"cwd"`
	Mounts    []Mount     `json:"mounts,omitempty"`
	Workspace Workspace   `json:"workspace"`
	Skills    []SkillUse  `json:"skills,omitempty"`
	// Degraded says what the sandbox has lost of what it was created with, such as its network.
	// Empty is nothing.
	Degraded string `json:"degraded,omitempty"`
	// Limits are the limits in force.
	Limits       Limits            `json:"limits"`
	ReadOnlyRoot bool              `json:"read_only_root"`
	Labels       map[string]string `json:"labels,omitempty"`
	// Adjusted lists every value that a lock or a clamp changed.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Unenforced lists default limits that this machine cannot enforce, with why.
	Unenforced []Unenforced `json:"unenforced,omitempty"`
	Persistent bool         `json:"persistent"`
	Transient  bool         `json:"transient,omitempty"`
	OnExpiry   Expiry       `json:"on_expiry,omitempty"`
	AutoResume bool         `json:"auto_resume,omitempty"`
	CreatedAt  time.Time    `json:"created_at"`
	// QueueMS is how long the creation waited in the queue. StartMS is how long it then took
	// until the sandbox ran, without the time to pull an image.
	QueueMS int64 `json:"queue_ms"`
	StartMS int64 `json:"start_ms"`
	// Starts counts how often it was started again after it had ended, and StartedAt is when that
	// last was.
	Starts    int        `json:"starts,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	// ExpiresAt is when its lease ends if it is not used before.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
	// SavedRootBytes is the size of the changes of its root that its last stop saved. A start
	// restores them.
	SavedRootBytes int64 `json:"saved_root_bytes,omitempty"`
	// SuspendedAt is when a suspended sandbox was suspended, and MemoryBytes is the size of its saved memory
	// and root on the disk. ResumedAt is when a sandbox was last resumed from the disk.
	SuspendedAt *time.Time `json:"suspended_at,omitempty"`
	MemoryBytes int64      `json:"memory_bytes,omitempty"`
	ResumedAt   *time.Time `json:"resumed_at,omitempty"`
	// Lost lists what its last end, or the start after it, did not keep.
	Lost []Loss `json:"lost,omitempty"`
	// ForkedFrom is the ID of the sandbox that it is a fork of.
	ForkedFrom string `json:"forked_from,omitempty"`
}

// Loss is a part of a sandbox that did not survive its end.
type Loss struct {
	Kind LossKind `json:"kind"`
	// Name is the path of a file or the ID of a process.
	Name   string `json:"name,omitempty"`
	Reason string `json:"reason"`
}

// LossKind is what was lost.
type LossKind string

// Kinds of losses. What a sandbox has in memory, such as /tmp, its processes and connections, is lost
// at each end and is not listed.
const (
	// LossRoot is what was changed in the root since the last start.
	LossRoot LossKind = "root"
	// LossFile is one file of the root.
	LossFile LossKind = "file"
	// LossProcess is a managed process with a restart policy that could not be started again.
	LossProcess LossKind = "process"
)

// LossKinds returns every kind.
func LossKinds() []LossKind { return []LossKind{LossRoot, LossFile, LossProcess} }

// RunningSince returns when a sandbox began to run, or last began again.
func (s Sandbox) RunningSince() time.Time {
	if s.StartedAt != nil {
		return *s.StartedAt
	}
	return s.CreatedAt.Add(time.Duration(s.QueueMS+s.StartMS) * time.Millisecond)
}

// MaxIdempotencyKey is the maximum length of an idempotency key, in bytes.
const MaxIdempotencyKey = 255

// ValidIdempotencyKey reports whether s is a valid key: 1 to 255 printable ASCII characters without
// spaces.
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

// Tier is the strength of the isolation.
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

// ListOptions selects sandboxes.
type ListOptions struct {
	// Labels must all be present with these values.
	Labels map[string]string
	// States selects sandboxes in any of these states. Empty selects all.
	States []State
	// Limit is the page size, 1 to 1000; 0 is 100.
	Limit int
	// Cursor is SandboxList.Next of the previous page.
	Cursor string
}

// StopOptions is the body of a stop request.
type StopOptions struct {
	// GraceMS is how long processes can take to end after TERM. Nil is 10 000.
	GraceMS *int64 `json:"grace_ms,omitempty"`
}

package api

import "time"

// Class says who is responsible for an error, for callers that count errors or decide about
// retries.
type Class string

// Classes of errors.
const (
	// ClassInfra means that the machine or the service failed. The request may succeed elsewhere
	// or later.
	ClassInfra Class = "infra"
	// ClassUser means that the request is invalid, was refused or was canceled.
	ClassUser Class = "user"
	// ClassLimit means that a limit was reached: memory, time, a quota or disk space.
	ClassLimit Class = "limit"
)

// TerminalReason says why a sandbox ended, in a form for programs. Sandbox.Reason is the text for
// people. It never changes once it is set: a sandbox that is removed after it was lost is still
// lost.
type TerminalReason string

// Reasons for the end of a sandbox.
const (
	// EndedStopped, EndedKilled and EndedDeleted mean that a caller requested it.
	EndedStopped TerminalReason = "stopped"
	EndedKilled  TerminalReason = "killed"
	EndedDeleted TerminalReason = "deleted"
	// EndedTTL means that its lifetime is over.
	EndedTTL TerminalReason = "ttl"
	// EndedIdle means that it was not used for its idle time.
	EndedIdle TerminalReason = "idle"
	// EndedLease means that the connection that held it, or the call that it was created for,
	// ended.
	EndedLease TerminalReason = "lease_expired"
	// EndedShutdown means that it is not persistent and the daemon was shut down.
	EndedShutdown TerminalReason = "shutdown"
	// EndedQuota means that its workspace exceeded its quota.
	EndedQuota TerminalReason = "quota"
	// EndedOOM means that its memory limit killed it.
	EndedOOM TerminalReason = "oom"
	// EndedLost means that it ended without a request.
	EndedLost TerminalReason = "lost"
	// EndedError means that it could not be created.
	EndedError TerminalReason = "error"
)

// TerminalReasons returns every reason, in the order of declaration.
func TerminalReasons() []TerminalReason {
	return []TerminalReason{
		EndedStopped, EndedKilled, EndedDeleted, EndedTTL, EndedIdle, EndedLease, EndedShutdown, EndedQuota, EndedOOM, EndedLost, EndedError,
	}
}

// Class returns the class of errors that this reason causes.
func (r TerminalReason) Class() Class {
	switch r {
	case EndedLost, EndedError, EndedShutdown:
		return ClassInfra
	case EndedTTL, EndedIdle, EndedLease, EndedQuota, EndedOOM:
		return ClassLimit
	case EndedStopped, EndedKilled, EndedDeleted:
	}
	return ClassUser
}

// Class returns the class of errors with this code.
func (c Code) Class() Class {
	switch c {
	case CodeUnavailable, CodeSandboxLost, CodeTimeout, CodeInternal:
		return ClassInfra
	case CodeTooLarge, CodeQuota, CodeNoCapacity, CodeTooMany:
		return ClassLimit
	case CodeInvalid, CodeUnauthenticated, CodeDenied, CodeNotFound, CodeExists, CodeConflict, CodeState, CodeUnsupported,
		CodeCommandNotFound, CodeNotExecutable, CodeDisabled, CodeCanceled:
	}
	return ClassUser
}

// Teardown is the progress of a teardown that did not succeed at once, or its result. The daemon
// tries six times within half a minute and then keeps retrying until nothing is left. Another
// delete retries at once what is left.
type Teardown struct {
	// Attempts is the number of attempts.
	Attempts int `json:"attempts"`
	// Error is the error of the last attempt. It is empty if there was none.
	Error string `json:"error,omitempty"`
	// NextAt is the time of the next attempt.
	NextAt *time.Time `json:"next_at,omitempty"`
	// Resources lists every kind of resource that a sandbox can leave behind, with how many
	// remain.
	Resources []Resource `json:"resources"`
}

// Resource is the state of one kind of resource that a sandbox had.
type Resource struct {
	Kind ResourceKind `json:"kind"`
	// Remaining is how many remain; 0 means that nothing remains. It is 1 if there are some that cannot be counted.
	Remaining int `json:"remaining"`
	// Error says why some remain, if that is known.
	Error string `json:"error,omitempty"`
}

// ResourceKind is a kind of resource that a sandbox uses on its machine.
type ResourceKind string

// Kinds of resources, in the order in which a teardown releases them.
const (
	// ResourceProcesses are processes, with their namespaces.
	ResourceProcesses ResourceKind = "processes"
	ResourceCgroup    ResourceKind = "cgroup"
	// ResourceMounts are mounts below the sandbox's directory.
	ResourceMounts ResourceKind = "mounts"
	// ResourceNetwork is the network link and the connections over it.
	ResourceNetwork ResourceKind = "network"
	// ResourceListeners are the listeners of the sandbox's endpoints.
	ResourceListeners ResourceKind = "listeners"
	// ResourceDisk is the sandbox's directory: files, logs and the private workspace. An ended
	// sandbox keeps it until it is removed.
	ResourceDisk ResourceKind = "disk"
	// ResourceLeases is the lease on a named workspace.
	ResourceLeases ResourceKind = "leases"
)

// ResourceKinds returns every kind, in the order in which a teardown releases them.
func ResourceKinds() []ResourceKind {
	return []ResourceKind{
		ResourceListeners, ResourceProcesses, ResourceCgroup, ResourceNetwork, ResourceMounts, ResourceLeases, ResourceDisk,
	}
}

// Extension is the body of an extend request.
type Extension struct {
	// LifetimeMS is the lifetime from now on. It never shortens the lifetime, unless Exact is set.
	LifetimeMS int64 `json:"lifetime_ms"`
	// Exact makes the lifetime end then, also if it would have ended later or never.
	Exact bool `json:"exact,omitempty"`
}

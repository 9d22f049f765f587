package api

import "time"

// Class says whose matter an error is, for callers that count or retry by that.
type Class string

// The classes.
const (
	// ClassInfra: the machine or the service failed, and what was asked for may work
	// elsewhere or later.
	ClassInfra Class = "infra"
	// ClassUser: the request is wrong, was refused or was taken back.
	ClassUser Class = "user"
	// ClassLimit: something that is bounded was used up: memory, time, a quota, space.
	ClassLimit Class = "limit"
)

// TerminalReason is why a sandbox ended, for programs; Sandbox.Reason says it for
// people. It never changes once it is set: what is removed after it was lost is
// still lost.
type TerminalReason string

// The reasons.
const (
	// EndedStopped, EndedKilled and EndedDeleted: a caller requested it.
	EndedStopped TerminalReason = "stopped"
	EndedKilled  TerminalReason = "killed"
	EndedDeleted TerminalReason = "deleted"
	// EndedTTL: its lifetime is over.
	EndedTTL TerminalReason = "ttl"
	// EndedIdle: it was not used for its idle time.
	EndedIdle TerminalReason = "idle"
	// EndedLease: what held it is gone: its connection, or the call that it was made for.
	EndedLease TerminalReason = "lease_expired"
	// EndedShutdown: it is not persistent, and the daemon was shut down.
	EndedShutdown TerminalReason = "shutdown"
	// EndedQuota: its workspace held more than it may.
	EndedQuota TerminalReason = "quota"
	// EndedOOM: its memory limit killed it.
	EndedOOM TerminalReason = "oom"
	// EndedLost: it died without a request.
	EndedLost TerminalReason = "lost"
	// EndedError: it could not be created.
	EndedError TerminalReason = "error"
)

// TerminalReasons lists every reason, in the order of their declaration.
func TerminalReasons() []TerminalReason {
	return []TerminalReason{
		EndedStopped, EndedKilled, EndedDeleted, EndedTTL, EndedIdle, EndedLease, EndedShutdown, EndedQuota, EndedOOM, EndedLost, EndedError,
	}
}

// Class is whose matter such an end is.
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

// Class is whose matter errors of this code are.
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

// Teardown is how far the end of a sandbox is that did not succeed at once, or what
// it came to. It is tried six times within half a minute, and from then on again and
// again until nothing is left; another delete tries at once what is still left.
type Teardown struct {
	// Attempts is how often it was tried.
	Attempts int `json:"attempts"`
	// Error says what went wrong the last time; empty when nothing did.
	Error string `json:"error,omitempty"`
	// NextAt is when it will be tried again.
	NextAt *time.Time `json:"next_at,omitempty"`
	// Resources are all that a sandbox can leave behind, each with what remains.
	Resources []Resource `json:"resources"`
}

// Resource is what remains of one kind of thing that a sandbox had.
type Resource struct {
	Kind ResourceKind `json:"kind"`
	// Remaining counts what is still there; 0 is nothing. Where it cannot be counted,
	// 1 stands for something.
	Remaining int `json:"remaining"`
	// Error says why it is still there, where that was seen.
	Error string `json:"error,omitempty"`
}

// ResourceKind is a kind of thing that a sandbox has of its machine.
type ResourceKind string

// The kinds.
const (
	// ResourceProcesses are the processes, with their namespaces.
	ResourceProcesses ResourceKind = "processes"
	ResourceCgroup    ResourceKind = "cgroup"
	// ResourceMounts are mounts below the sandbox's directory.
	ResourceMounts ResourceKind = "mounts"
	// ResourceNetwork is its link and the connections over it.
	ResourceNetwork ResourceKind = "network"
	// ResourceListeners are those of its endpoints.
	ResourceListeners ResourceKind = "listeners"
	// ResourceDisk is its directory: files, logs and the private workspace. What has
	// ended and was not removed keeps that.
	ResourceDisk ResourceKind = "disk"
	// ResourceLeases is a named workspace that it has.
	ResourceLeases ResourceKind = "leases"
)

// ResourceKinds lists every kind, in the order in which a teardown ends them.
func ResourceKinds() []ResourceKind {
	return []ResourceKind{
		ResourceListeners, ResourceProcesses, ResourceCgroup, ResourceNetwork, ResourceMounts, ResourceLeases, ResourceDisk,
	}
}

// Extension is the body of extend.
type Extension struct {
	// LifetimeMS is how long the sandbox may live from now on. It never brings the end
	// nearer.
	LifetimeMS int64 `json:"lifetime_ms"`
}

package api

// Status is the daemon's own state: three different things kept apart.
type Status struct {
	Version string `json:"version"`
	// Enabled is the operator's switch.
	Enabled bool `json:"enabled"`
	// Available: a create would find a usable engine now, space in the daemon's home,
	// and an audit log that can be written.
	Available bool `json:"available"`
	// Reason says why no sandbox is available, and Message the same for people; empty
	// where one can.
	Reason  StatusReason `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Engine  EngineStatus `json:"engine"`
	// Profile is the one of requests that name none.
	Profile string `json:"profile"`
	// RecentErrors counts what GET /v1/errors tells of the caller's tenant.
	RecentErrors int `json:"recent_errors"`
	// Sandboxes counts live ones of all tenants.
	Sandboxes int `json:"sandboxes"`
	// Starting counts those that are being made now, Queued those that wait for that.
	Starting int `json:"starting"`
	Queued   int `json:"queued"`
	// Problems are faults of the daemon's home, audit log and policy file. Only the
	// operator is told.
	Problems []Problem `json:"problems,omitempty"`
}

// StatusReason says why no sandbox is available.
type StatusReason string

// The reasons. A daemon says one of the first five, a client that gets no answer from
// it one of the others.
const (
	// ReasonDisabled: the operator switched it off.
	ReasonDisabled StatusReason = "disabled"
	// ReasonEngineDown: the engine that the operator named cannot be used now; it is
	// Status.Engine.
	ReasonEngineDown StatusReason = "engine_down"
	// ReasonNoEngine: no engine is named, and none of all can be used.
	ReasonNoEngine StatusReason = "no_engine"
	// ReasonDiskFull: the file system of the daemon's home has no space or no inodes left.
	ReasonDiskFull StatusReason = "disk_full"
	// ReasonAuditFailing: the audit log cannot be written, and what needs a record is
	// refused.
	ReasonAuditFailing StatusReason = "audit_failing"
	// ReasonNeverConnected: the client has never reached the daemon.
	ReasonNeverConnected StatusReason = "never_connected"
	// ReasonLost: it has, and cannot any more.
	ReasonLost StatusReason = "connection_lost"
	// ReasonFailing: the daemon is there, and answers with an error.
	ReasonFailing StatusReason = "failing"
)

// EngineStatus is the verdict on the engine that "auto" chooses.
type EngineStatus struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Reason says why not, and how to fix it.
	Reason string `json:"reason,omitempty"`
}

// What an engine may keep programs from in directories of the host: to connect or send to
// a unix socket of the host there. EnforcesMountSockets is about directories
// to write, EnforcesReadOnlyMountSockets about those to read, where it holds for opening a
// named pipe to write as well.
const (
	EnforcesMountSockets         = "mount_sockets"
	EnforcesReadOnlyMountSockets = "mount_sockets_ro"
)

// EnforcesKernelTables is that a sandbox cannot take from the host or from other sandboxes
// what the kernel counts by user or for the whole machine: inotify instances and watches,
// terminals, timers, pending signals, message queues, pages of pipes.
const EnforcesKernelTables = "kernel_tables"

// EnforcesKernelFiles is that no file of /proc tells a sandbox what others on the machine do,
// except for sums that system calls tell as well: memory, load and time since the start.
const EnforcesKernelFiles = "kernel_files"

// EngineReport is what an engine can do on this machine.
type EngineReport struct {
	Name   string `json:"name"`
	Tier   Tier   `json:"tier"`
	Usable bool   `json:"usable"`
	// Problems say what is missing, each with its fix.
	Problems []Problem `json:"problems,omitempty"`
	// Enforces says for each limit whether it can be enforced: "cpus",
	// "memory_bytes", "pids", "disk_bytes"; and "egress", whether a sandbox can have a
	// network on which everything goes by rules; and EnforcesMountSockets,
	// EnforcesReadOnlyMountSockets, EnforcesKernelTables and EnforcesKernelFiles.
	Enforces map[string]Enforcement `json:"enforces"`
	// SharesHostFS says that its sandboxes are made of files of this machine. Where it
	// is false a workspace is a volume of the engine's, and nothing of the host's can be
	// seen inside.
	SharesHostFS bool `json:"shares_host_fs"`
	// Facts are details for people: platform, cgroup version, rootless.
	Facts map[string]string `json:"facts,omitempty"`
}

// Enforcement says whether a limit can be enforced and, if not, why not.
type Enforcement struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// Problem is one thing that is missing.
type Problem struct {
	What string `json:"what"`
	Mend string `json:"mend,omitempty"`
}

// Doctor is the answer of GET /v1/doctor: the verdict for each engine.
type Doctor struct {
	Version string            `json:"version"`
	Host    map[string]string `json:"host"`
	Engines []EngineReport    `json:"engines"`
	// Problems are those of Status.
	Problems []Problem `json:"problems,omitempty"`
}

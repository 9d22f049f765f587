package api

// Status is the state of the daemon. It reports three independent things.
type Status struct {
	Version string `json:"version"`
	// Enabled is the operator's switch.
	Enabled bool `json:"enabled"`
	// Available means that a create would now find a usable engine, free space in the daemon's
	// home directory, and a writable audit log.
	Available bool `json:"available"`
	// Reason says why no sandbox can be created. Message is the same for people. Both are empty
	// if one can be created.
	Reason  StatusReason `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Engine  EngineStatus `json:"engine"`
	// Profile is the profile of requests that do not name one.
	Profile string `json:"profile"`
	// RecentErrors is the number of errors that GET /v1/errors returns for the caller's tenant.
	RecentErrors int `json:"recent_errors"`
	// Sandboxes is the number of live sandboxes of all tenants.
	Sandboxes int `json:"sandboxes"`
	// Starting is the number of sandboxes that are being created. Queued is the number that wait
	// for that.
	Starting int `json:"starting"`
	Queued   int `json:"queued"`
	// Problems are faults of the daemon's home directory, audit log and policy file. Only the
	// operator sees them.
	Problems []Problem `json:"problems,omitempty"`
}

// StatusReason says why no sandbox can be created.
type StatusReason string

// Reasons. A daemon returns one of the first five. A client that gets no answer from the daemon
// sets one of the others.
const (
	// ReasonDisabled means that the operator disabled the daemon.
	ReasonDisabled StatusReason = "disabled"
	// ReasonEngineDown means that the engine that the operator selected cannot be used now.
	// Status.Engine names it.
	ReasonEngineDown StatusReason = "engine_down"
	// ReasonNoEngine means that no engine is selected and none can be used.
	ReasonNoEngine StatusReason = "no_engine"
	// ReasonDiskFull means that the file system of the daemon's home directory has no free space
	// or no free inodes.
	ReasonDiskFull StatusReason = "disk_full"
	// ReasonAuditFailing means that the audit log cannot be written. Operations that require a
	// record are refused.
	ReasonAuditFailing StatusReason = "audit_failing"
	// ReasonNeverConnected means that the client has never reached the daemon.
	ReasonNeverConnected StatusReason = "never_connected"
	// ReasonLost means that the client reached the daemon before and no longer can.
	ReasonLost StatusReason = "connection_lost"
	// ReasonFailing means that the daemon answers with an error.
	ReasonFailing StatusReason = "failing"
)

// EngineStatus is the status of the engine that "auto" selects.
type EngineStatus struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Reason says why it is not usable, and how to fix it.
	Reason string `json:"reason,omitempty"`
}

// Names of capabilities in EngineReport.Enforces. EnforcesMountSockets means that programs cannot
// connect or send to unix sockets of the host in writable mounts. EnforcesReadOnlyMountSockets
// means the same for read-only mounts, and also covers opening a named pipe for writing.
const (
	EnforcesMountSockets         = "mount_sockets"
	EnforcesReadOnlyMountSockets = "mount_sockets_ro"
)

// EnforcesKernelTables means that a sandbox cannot use up what the host or other sandboxes need of the
// resources that the kernel counts per user or for the whole machine: inotify instances and watches,
// terminals, timers, pending signals, message queues, pages of pipes.
const EnforcesKernelTables = "kernel_tables"

// EnforcesKernelFiles means that no file of /proc shows a sandbox what other processes on the
// machine do, except for totals that system calls also return: memory, load and uptime.
const EnforcesKernelFiles = "kernel_files"

// EngineReport is what an engine can do on this machine.
type EngineReport struct {
	Name   string `json:"name"`
	Tier   Tier   `json:"tier"`
	Usable bool   `json:"usable"`
	// Problems lists what is missing, each with how to fix it.
	Problems []Problem `json:"problems,omitempty"`
	// Enforces says for each limit whether it can be enforced: "cpus", "memory_bytes", "pids",
	// "disk_bytes"; "egress", which is a network under egress rules; EnforcesMountSockets,
	// EnforcesReadOnlyMountSockets, EnforcesKernelTables and EnforcesKernelFiles.
	Enforces map[string]Enforcement `json:"enforces"`
	// SharesHostFS means that its sandboxes use files of this machine. If it is false, a workspace
	// is a volume of the engine, and no file of the host is visible inside.
	SharesHostFS bool `json:"shares_host_fs"`
	// CopiesFiles means that its sandboxes have copies of the workspace and of mounted directories,
	// which are synchronized with those of this machine. It does not go with SharesHostFS.
	CopiesFiles bool `json:"copies_files,omitempty"`
	// OwnImages means that an image is a template at a service, by its name there.
	OwnImages bool `json:"own_images,omitempty"`
	// Suspends means that it can save the memory of a sandbox, so that a suspend, on_expiry and auto_resume work.
	Suspends bool `json:"suspends,omitempty"`
	// Facts are details for people: platform, cgroup version, rootless.
	Facts map[string]string `json:"facts,omitempty"`
	// Pool counts the sandboxes that the engine keeps ready; nil is an engine without a pool.
	Pool *PoolCounts `json:"pool,omitempty"`
}

// PoolCounts are the counts of a pool of sandboxes since the daemon started, and what it has now.
type PoolCounts struct {
	// Ready sandboxes wait for a request. MemoryBytes is what they have.
	Ready       int   `json:"ready"`
	MemoryBytes int64 `json:"memory_bytes"`
	// Taken requests got a ready sandbox. Missed ones found none of their kind, and Unfit ones
	// asked for what a sandbox has to start with.
	Taken  int64 `json:"taken"`
	Missed int64 `json:"missed"`
	Unfit  int64 `json:"unfit"`
	// Made, Failed and Dropped count sandboxes of the pool: Failed could not be started, Dropped
	// were never taken.
	Made    int64 `json:"made"`
	Failed  int64 `json:"failed"`
	Dropped int64 `json:"dropped"`
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

// Doctor is the answer of GET /v1/doctor: the report of each engine.
type Doctor struct {
	Version string            `json:"version"`
	Host    map[string]string `json:"host"`
	Engines []EngineReport    `json:"engines"`
	// Problems are the same as in Status.
	Problems []Problem `json:"problems,omitempty"`
}

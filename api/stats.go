package api

import "time"

// SandboxStats is a sandbox's resource usage at one moment. A value is nil if the engine or this
// machine cannot measure it, or if the sandbox is not running.
type SandboxStats struct {
	Sandbox string `json:"sandbox"`
	Name    string `json:"name"`
	State   State  `json:"state"`
	Engine  string `json:"engine"`
	// ObservedAt is the time of the measurement. WorkspaceObservedAt is when the files were
	// counted.
	ObservedAt          time.Time  `json:"observed_at"`
	WorkspaceObservedAt *time.Time `json:"workspace_observed_at,omitempty"`
	// CPUMS is the CPU time since the create, in milliseconds of one core.
	CPUMS *int64 `json:"cpu_ms,omitempty"`
	// MemoryBytes is the memory that the kernel charges to the whole sandbox, Cloche's own
	// processes included.
	MemoryBytes *int64 `json:"memory_bytes,omitempty"`
	// MemoryParts says which of Cloche's own processes have how much of the machine's memory.
	MemoryParts *MemoryParts `json:"memory_parts,omitempty"`
	// Processes is the number of processes inside the sandbox.
	Processes *int64 `json:"processes,omitempty"`
	// WorkspaceBytes is the disk space that the files of its private or named workspace use.
	WorkspaceBytes *int64 `json:"workspace_bytes,omitempty"`
	// NetworkInBytes and NetworkOutBytes count the bytes that crossed its network link.
	NetworkInBytes  *int64 `json:"network_in_bytes,omitempty"`
	NetworkOutBytes *int64 `json:"network_out_bytes,omitempty"`
	// Limits are the limits in force.
	Limits Limits `json:"limits"`
}

// MemoryParts is the memory of a sandbox by process. Each value except AgentBytes is a proportional
// set size (PSS): memory that processes share counts for each by its share. A value is nil if the
// engine has no such process or this machine cannot measure it.
type MemoryParts struct {
	// SentryBytes is the memory of gVisor's kernel. It includes its share of the sandbox's memory.
	SentryBytes *int64 `json:"sentry_bytes,omitempty"`
	// GoferBytes is the memory of the processes that serve the files of mounts.
	GoferBytes *int64 `json:"gofer_bytes,omitempty"`
	// ProgramBytes is the memory of the host processes that the sandbox's programs run in, the agent
	// included.
	ProgramBytes *int64 `json:"program_bytes,omitempty"`
	// AgentBytes is the resident set size of the agent, as the sandbox's kernel counts it.
	AgentBytes *int64 `json:"agent_bytes,omitempty"`
}

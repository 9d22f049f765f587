package api

import "time"

// SandboxStats is what a sandbox uses at one moment. What was not measured is nil: the
// engine or this machine cannot tell it, or the sandbox does not run.
type SandboxStats struct {
	Sandbox string `json:"sandbox"`
	Name    string `json:"name"`
	State   State  `json:"state"`
	Engine  string `json:"engine"`
	// ObservedAt is when it was measured, WorkspaceObservedAt when the files were counted.
	ObservedAt          time.Time  `json:"observed_at"`
	WorkspaceObservedAt *time.Time `json:"workspace_observed_at,omitempty"`
	// CPUMS is processor time since the create, in milliseconds on one core.
	CPUMS *int64 `json:"cpu_ms,omitempty"`
	// MemoryBytes is what the kernel charges the whole sandbox, Cloche's own part in it.
	MemoryBytes *int64 `json:"memory_bytes,omitempty"`
	// Processes is how many programs run inside.
	Processes *int64 `json:"processes,omitempty"`
	// WorkspaceBytes is what the files of its private or named workspace occupy.
	WorkspaceBytes *int64 `json:"workspace_bytes,omitempty"`
	// NetworkInBytes and NetworkOutBytes crossed its network link.
	NetworkInBytes  *int64 `json:"network_in_bytes,omitempty"`
	NetworkOutBytes *int64 `json:"network_out_bytes,omitempty"`
	// Limits are those in force.
	Limits Limits `json:"limits"`
}

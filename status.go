package cloche

// Status is the daemon's own state: three different things kept apart.
type Status struct {
	Version string `json:"version"`
	// Enabled is the operator's switch.
	Enabled bool `json:"enabled"`
	// Available: a create would find a usable engine now.
	Available bool         `json:"available"`
	Engine    EngineStatus `json:"engine"`
	// Sandboxes counts live ones of all tenants.
	Sandboxes int `json:"sandboxes"`
}

// EngineStatus is the verdict on the engine that "auto" chooses.
type EngineStatus struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Reason says why not, and how to mend it.
	Reason string `json:"reason,omitempty"`
}

// EngineReport is what an engine can do on this machine.
type EngineReport struct {
	Name   string `json:"name"`
	Tier   Tier   `json:"tier"`
	Usable bool   `json:"usable"`
	// Problems say what is missing, each with how to mend it.
	Problems []Problem `json:"problems,omitempty"`
	// Enforces says for each limit whether it can be enforced: "cpus",
	// "memory_bytes", "pids", "disk_bytes".
	Enforces map[string]Enforcement `json:"enforces"`
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
}

// Image is one root filesystem that a create can name.
type Image struct {
	Name   string `json:"name"`
	Digest string `json:"digest,omitempty"`
	// SizeBytes is what it occupies under the home; 0 for host.
	SizeBytes   int64  `json:"size_bytes"`
	Description string `json:"description,omitempty"`
}

// ImageList is the answer of GET /v1/images.
type ImageList struct {
	Images []Image `json:"images"`
}

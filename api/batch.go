package api

// Limits of one batch.
const (
	// MaxBatch is the maximum number of IDs, keys or matches in a batch.
	MaxBatch = 1000
	// MaxBatchCreate is the maximum number of sandboxes that one batch can create.
	MaxBatchCreate = 512
)

// BatchCreate creates many sandboxes in one call.
type BatchCreate struct {
	Specs []SandboxSpec `json:"specs"`
	// Count is how many sandboxes to create from each spec; 0 means 1. From the second one on,
	// names and idempotency keys that are set get the suffix "-2", "-3" and so on.
	Count int `json:"count,omitempty"`
}

// BatchSelect selects sandboxes. A status request can only set IDs. A removal can set any field.
type BatchSelect struct {
	// IDs are IDs or names.
	IDs []string `json:"ids,omitempty"`
	// IdempotencyKeys are keys of creations. They can belong to creations that never arrived or
	// are still in progress: for 24 hours, such a key does not create a sandbox.
	IdempotencyKeys []string `json:"idempotency_keys,omitempty"`
	// Labels selects the sandboxes of the caller's tenant that have all of these labels.
	Labels map[string]string `json:"labels,omitempty"`
}

// BatchResult is the result of a batch. Each part succeeds or fails independently.
type BatchResult struct {
	// Succeeded are the records of the parts that succeeded, in the order of the request.
	Succeeded []Sandbox `json:"succeeded"`
	// Failed are the parts that failed.
	Failed []BatchFailure `json:"failed"`
}

// BatchFailure is one part of a batch that failed.
type BatchFailure struct {
	// ID is the ID or name in the request. It is empty for a sandbox that was to be created.
	ID string `json:"id,omitempty"`
	// Index is the position in the request, from 0. In a creation with a Count, the first Count
	// positions belong to the first spec.
	Index int    `json:"index"`
	Error *Error `json:"error"`
}

// ForkRequest asks for sandboxes that continue from the memory and the files of another. Count or Names is set.
type ForkRequest struct {
	// Count is how many to create, 1 to MaxForks. Each has its ID as its name.
	Count int `json:"count,omitempty"`
	// Names are the names of the forks, which are as many.
	Names []string `json:"names,omitempty"`
}

// MaxForks is the maximum number of sandboxes of one ForkRequest.
const MaxForks = 100

// ForkResult is the result of a ForkRequest. Each fork succeeds or fails independently, and the parent was captured once.
type ForkResult struct {
	BatchResult
	// PausedMS is for how long the parent was paused for the capture. It is 0 for a parent that was suspended before.
	PausedMS int64 `json:"paused_ms"`
	// MemoryBytes is the size of the captured memory and root on the disk, and MemorySum is a SHA-256 checksum of them,
	// in hex.
	MemoryBytes int64  `json:"memory_bytes"`
	MemorySum   string `json:"memory_sum"`
}

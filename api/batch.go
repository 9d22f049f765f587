package api

// Bounds of one batch.
const (
	// MaxBatch is how many ids, keys or matches a batch may have.
	MaxBatch = 1000
	// MaxBatchCreate is how many sandboxes one batch may make.
	MaxBatchCreate = 512
)

// BatchCreate makes many sandboxes in one call.
type BatchCreate struct {
	Specs []SandboxSpec `json:"specs"`
	// Count makes each of the specs so often; 0 is once. From the second on their
	// names and idempotency keys get "-2" and so on at the end, where they have any.
	Count int `json:"count,omitempty"`
}

// BatchSelect chooses sandboxes. For a status only IDs may be set, for a removal
// any of them.
type BatchSelect struct {
	// IDs are ids or names.
	IDs []string `json:"ids,omitempty"`
	// IdempotencyKeys are keys of creations, also of those that never came or are not
	// done: nothing comes of them for 24 hours.
	IdempotencyKeys []string `json:"idempotency_keys,omitempty"`
	// Labels choose all of the caller's own tenant that have every one of them.
	Labels map[string]string `json:"labels,omitempty"`
}

// BatchResult is what became of a batch, each part for itself.
type BatchResult struct {
	// Succeeded are the records, in the order of the request.
	Succeeded []Sandbox `json:"succeeded"`
	// Failed are the others.
	Failed []BatchFailure `json:"failed"`
}

// BatchFailure is one part of a batch that failed.
type BatchFailure struct {
	// ID is what the request called it; empty for a sandbox that was to be made.
	ID string `json:"id,omitempty"`
	// Index is its place in the request, from 0: for a creation with a Count, the
	// first so many are of the first spec.
	Index int    `json:"index"`
	Error *Error `json:"error"`
}

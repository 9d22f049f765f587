package policy

const (
	// leastRoot is the minimum share of limits.disk_bytes for a writable root.
	leastRoot = mib
)

package policy

const (
	// minWorkspace and maxWorkspace are the smallest and largest size of a limited workspace.
	minWorkspace = mib
	maxWorkspace = 1 << 43
)

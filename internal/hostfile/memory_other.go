//go:build darwin || windows

package hostfile

// Memory is unknown: sandboxes run on another machine.
func Memory() int64 { return 0 }

// AvailableMemory is unknown: sandboxes run on another machine.
func AvailableMemory() (int64, bool) { return 0, false }

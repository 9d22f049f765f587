//go:build darwin || windows

package sandbox

// machineMemory is unknown: sandboxes run on another machine.
func machineMemory() int64 { return 0 }

package hostfile

import "math"

// FullReason is empty: no daemon runs on Windows.
func FullReason(string) string { return "" }

// FreeBytes is no bound: no daemon runs on Windows.
func FreeBytes(string) uint64 { return math.MaxUint64 }

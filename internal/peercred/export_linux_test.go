package peercred

// SameByStatus is for tests.
func SameByStatus(pid int) error { return sameByStatus(pid) }

//go:build !linux

package e2b

// copiesFiles says that the daemon can read and write directories of this system for its sandboxes.
const copiesFiles = false

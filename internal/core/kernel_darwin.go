package core

import "golang.org/x/sys/unix"

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	release, err := unix.Sysctl("kern.osrelease")
	if err != nil {
		return "unknown"
	}
	return release
}

// oomScore exists only on Linux.
func oomScore() string { return "" }

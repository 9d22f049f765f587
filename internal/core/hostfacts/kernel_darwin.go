package hostfacts

import "golang.org/x/sys/unix"

// KernelRelease is what uname -r prints.
func KernelRelease() string {
	release, err := unix.Sysctl("kern.osrelease")
	if err != nil {
		return "unknown"
	}
	return release
}

// OOMScore exists only on Linux.
func OOMScore() string { return "" }

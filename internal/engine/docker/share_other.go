//go:build !linux

package docker

// kernelRelease: no daemon runs its containers by the kernel of this machine.
func kernelRelease() string { return "" }

package hostfacts

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// KernelRelease returns the version as ver prints it.
func KernelRelease() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// OOMScore exists only on Linux.
func OOMScore() string { return "" }

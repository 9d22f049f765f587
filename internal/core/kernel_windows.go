package core

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// kernelRelease returns the version as ver prints it.
func kernelRelease() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// oomScore exists only on Linux.
func oomScore() string { return "" }

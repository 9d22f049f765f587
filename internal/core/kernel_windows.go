package core

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// kernelRelease is what ver prints of the version.
func kernelRelease() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// oomScore is a matter of Linux.
func oomScore() string { return "" }

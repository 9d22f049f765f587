package core

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// oomScore returns the kernel's OOM score adjustment of this process, or "" if it cannot be read.
func oomScore() string {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

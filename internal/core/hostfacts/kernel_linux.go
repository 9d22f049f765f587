package hostfacts

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelRelease is what uname -r prints.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// OOMScore returns the kernel's OOM score adjustment of this process, or "" if it cannot be read.
func OOMScore() string {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

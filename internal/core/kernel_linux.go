package core

import "golang.org/x/sys/unix"

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

//go:build !remoteonly

package workspace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mounts are all mounts that this process sees, in the order of mounting.
func Mounts() ([]Mount, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	mounts := parseMounts(string(info))
	if len(mounts) == 0 {
		return nil, fmt.Errorf("read mounts: the list is empty")
	}
	return mounts, nil
}

// MountOf is the ID of the mount through which the last element of path is seen; 0 where
// the kernel does not tell.
func MountOf(path string) int {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return int(st.Mnt_id)
}

//go:build unix

package localdir

import (
	"io/fs"
	"syscall"
)

// inodeOf identifies a file that has several names; false for one that has not.
func inodeOf(info fs.FileInfo) (id [2]uint64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return id, false
	}
	return [2]uint64{uint64(st.Dev), uint64(st.Ino)}, true //nolint:unconvert // the types differ between systems
}

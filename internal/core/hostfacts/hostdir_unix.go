//go:build linux || darwin

package hostfacts

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// realPath returns a path with symlinks resolved.
func realPath(path string) (string, error) { return filepath.EvalSymlinks(path) }

// describe returns the fact about a path without symlinks, or the zero value if it cannot be
// examined.
func describe(real string) policy.DirFact {
	fi, err := os.Lstat(real)
	if err != nil {
		return policy.DirFact{}
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return policy.DirFact{}
	}
	return policy.DirFact{
		Real: real, Dir: fi.IsDir(), OwnerUID: int(st.Uid), Dev: uint64(st.Dev), Ino: st.Ino, Mount: workspace.MountOf(real),
	}
}

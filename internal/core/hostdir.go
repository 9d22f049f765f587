package core

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/internal/policy"
)

// lookAt finds out what policy must know of one path. Whoever mounts it opens
// it again and compares device and inode, so that what changes between is found.
func lookAt(path string) policy.DirFact {
	real, err := realPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return lookAbove(path)
	}
	if err != nil {
		return policy.DirFact{}
	}
	fact := describe(real)
	fact.Exists = fact.Real != ""
	return fact
}

// lookAbove finds the deepest directory above a path that does not exist. What a
// dangling symlink would lead to is not made.
func lookAbove(path string) policy.DirFact {
	missing := ""
	for above := filepath.Dir(path); path != above; above = filepath.Dir(path) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return policy.DirFact{}
		}
		missing = filepath.Join(filepath.Base(path), missing)
		path = above
		real, err := realPath(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return policy.DirFact{}
		}
		fact := describe(real)
		fact.Missing = missing
		return fact
	}
	return policy.DirFact{}
}

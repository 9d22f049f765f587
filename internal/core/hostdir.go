package core

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cloche-dev/cloche/internal/policy"
)

// lookAt finds out what policy must know of one path. Whoever mounts it opens
// it again and compares device and inode, so that what changes between is found.
func lookAt(path string) policy.DirFact {
	real, err := filepath.EvalSymlinks(path)
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
	for path != "/" {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return policy.DirFact{}
		}
		missing = filepath.Join(filepath.Base(path), missing)
		path = filepath.Dir(path)
		real, err := filepath.EvalSymlinks(path)
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

// describe is the fact about a path without symlinks; the zero value when it
// cannot be looked at.
func describe(real string) policy.DirFact {
	fi, err := os.Lstat(real)
	if err != nil {
		return policy.DirFact{}
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return policy.DirFact{}
	}
	return policy.DirFact{Real: real, Dir: fi.IsDir(), OwnerUID: int(st.Uid), Dev: uint64(st.Dev), Ino: st.Ino}
}

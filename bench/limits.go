//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The limits are the same for every subject: those of the default profile.
const (
	limitMemory = 2 << 30
	limitCPUs   = 2
	limitPids   = 1024
	limitTmp    = 512 << 20
	limitShm    = 64 << 20
)

// word is what every program says that is waited for.
const word = "ready"

// cgroupParent is where the peers make their cgroups.
const cgroupParent = "cloche-bench"

// removeCgroups removes the peers' cgroups, which they leave behind empty.
func removeCgroups() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroupParent, "/sys/fs/cgroup/*/" + cgroupParent} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, top := range tops {
			errs = append(errs, removeGroup(top))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a cgroup after those below it. Its files are the kernel's
// and go with it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Package directory has the directory of a sandbox on the host: the names of its files, in which order they come and go,
// and what is left when a daemon dies in between.
package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Names in the directory.
const (
	// Record is the record of the sandbox, which only its owner can read.
	Record = "sandbox.json"
	// A description of a sandbox is written before there is anything in its directory, and
	// never again. Its name says what a directory without a record is: with UnfinishedIdentity
	// a creation that never finished, with Identity a sandbox whose record was lost.
	UnfinishedIdentity = "creating.json"
	Identity           = "created.json"
	// Engine is the directory for the engine's own files.
	Engine = "engine"
	// Staging is where the directories of the host are mounted for the engine.
	Staging = "staging"
	// Root is what the sandbox changed in its root until its last stop.
	Root = "root.tar"
	// Memory is the directory for the saved memory of a suspended sandbox.
	Memory = "memory"
)

// Sandboxes contains a directory for each sandbox, below the directory of its owner.
const Sandboxes = "sandboxes"

// goneDir begins the name of a directory that is being removed.
const goneDir = ".gone-"

// MountsError is the error about mounts in a directory that cannot be unmounted.
type MountsError struct{ err error }

// Error implements error.
func (e *MountsError) Error() string { return "unmount what was staged: " + e.err.Error() }

// Unwrap returns the cause.
func (e *MountsError) Unwrap() error { return e.err }

// Prepare makes the directories that a start of the sandbox needs, and empties those of an earlier one.
func Prepare(dir string) error {
	if err := removeStaging(dir); err != nil {
		return err
	}
	for _, sub := range []string{Engine, Staging} {
		if err := workspace.RemovePrivate(filepath.Join(dir, sub)); err != nil {
			return fmt.Errorf("remove what an earlier start left: %w", err)
		}
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make directory of sandbox: %w", err)
		}
	}
	return nil
}

// removeStaging unmounts what an interrupted creation left in the directory of mounts, and removes the directory if it is
// empty.
func removeStaging(dir string) error {
	staging := filepath.Join(dir, Staging)
	if err := os.Remove(staging); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := workspace.SweepStaging(staging); err != nil {
		return &MountsError{err}
	}
	return nil
}

// Establish gives the description the name that it has once the record is on the disk.
// Where the name does not survive a power cut, the record has, and the next daemon gives it
// again.
func Establish(dir string) error {
	err := os.Rename(filepath.Join(dir, UnfinishedIdentity), filepath.Join(dir, Identity))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("name description: %w", err)
	}
	return nil
}

// Unfinished reports whether a directory without a record is what a creation left that
// never finished: nothing in it was ever promised to a caller. Anything else without a
// record may have the files of a user.
func Unfinished(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, Identity)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if _, err := os.Lstat(filepath.Join(dir, UnfinishedIdentity)); err == nil {
		return true
	}
	return hostfile.HasNoFiles(dir)
}

// List lists the sandbox directories under the owner's directory, and the paths of
// those that were being removed.
func List(dir string) (ids, gone []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), goneDir) {
			gone = append(gone, filepath.Join(dir, e.Name()))
		} else if e.IsDir() && api.ValidName(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, gone, nil
}

// Withdraw makes a sandbox whose creation failed one that was never finished: no next
// daemon calls it lost.
func Withdraw(dir string) error {
	err := os.Rename(filepath.Join(dir, Identity), filepath.Join(dir, UnfinishedIdentity))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(filepath.Join(dir, Record))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("withdraw record: %w", err)
	}
	return nil
}

// Clear removes the directory of a sandbox without running processes. It renames the directory
// first, so that what is left of it is never taken for a sandbox.
func Clear(dir string) error {
	if err := removeStaging(dir); err != nil {
		return err
	}
	gone := filepath.Join(filepath.Dir(dir), goneDir+filepath.Base(dir))
	switch err := os.Rename(dir, gone); {
	case errors.Is(err, fs.ErrNotExist): // an attempt before this one did
	case err != nil:
		// A system may keep the name of a directory while a file in it is open.
		if err := workspace.RemovePrivate(dir); err != nil {
			return fmt.Errorf("remove directory of sandbox: %w", err)
		}
		return nil
	}
	if err := hostfile.SyncDirAt(filepath.Dir(dir)); err != nil {
		return err
	}
	return RemoveGone(gone)
}

// RemoveGone removes what Clear has renamed.
func RemoveGone(dir string) error {
	if err := workspace.RemovePrivate(dir); err != nil {
		return fmt.Errorf("remove directory of sandbox: %w", err)
	}
	return nil
}

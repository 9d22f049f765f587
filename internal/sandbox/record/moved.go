package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
)

// AdoptMoved moves the sandboxes of one owner's directory to another owner's, after a home
// directory was moved, copied or restored from a backup. It removes what engines need to find the
// instances: the paths in it are those of the old home, and the instances may belong to a daemon
// that still runs there. The next Recover finds these sandboxes lost, with their workspaces, layers
// and logs. AdoptMoved can be repeated after a crash. It moves a tombstone if the other owner has
// none for that ID.
func AdoptMoved(from, to string) error {
	ids, _, err := directory.List(filepath.Join(from, directory.Sandboxes))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, directory.Sandboxes), 0o700); err != nil {
		return fmt.Errorf("make directory of sandboxes: %w", err)
	}
	var errs []error
	for _, id := range ids {
		if err := adoptMoved(filepath.Join(from, directory.Sandboxes, id), filepath.Join(to, directory.Sandboxes, id)); err != nil {
			errs = append(errs, fmt.Errorf("take over sandbox %s: %w", id, err))
		}
	}
	errs = append(errs, tombstone.Move(from, to))
	return errors.Join(errs...)
}

// adoptMoved moves one sandbox's directory. One whose record cannot be read moves as it is.
func adoptMoved(from, to string) error {
	if r, err := Read(from); err == nil && r.EngineState != nil {
		r.EngineState = nil
		if err := r.Write(from, false); err != nil {
			return err
		}
	}
	return os.Rename(from, to)
}

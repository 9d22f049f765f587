//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
)

// TryStage stages a directory as every sandbox's workspace is staged, in a directory that
// it makes below parent and removes, and returns what fails of it.
func TryStage(parent string) (err error) {
	if os.Geteuid() != 0 {
		return nil // Stage mounts nothing
	}
	at, err := os.MkdirTemp(parent, "probe-")
	if err != nil {
		return fmt.Errorf("try a mount: %w", err)
	}
	// Not by RemoveAll: what is mounted in it is not to be emptied.
	staging := filepath.Join(at, "staging")
	defer func() {
		for _, name := range []string{filepath.Join(at, "files"), staging, at} {
			if gone := os.Remove(name); gone != nil && !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	if err := os.Mkdir(staging, 0o700); err != nil {
		return fmt.Errorf("try a mount: %w", err)
	}
	d, err := Private(filepath.Join(at, "files"))
	if err != nil {
		return err
	}
	defer d.Close()
	s, err := d.Stage(staging, false)
	if err != nil {
		return err
	}
	return s.Close()
}

// StageProblem is TryStage for people: nil, or what is wrong with the machine and how to
// fix it.
func StageProblem(parent string) *api.Problem {
	err := TryStage(parent)
	if err == nil {
		return nil
	}
	p := &api.Problem{What: "a directory of this machine cannot be mounted for a sandbox: " + rootCause(err)}
	if e, ok := errors.AsType[*api.Error](err); ok {
		p.Mend = e.Hint
	}
	return p
}

// rootCause is the innermost error: the others name a path that no request named.
func rootCause(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

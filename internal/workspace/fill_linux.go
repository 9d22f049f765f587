//go:build !remoteonly

package workspace

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/cloche-dev/cloche/api"
)

// Empty returns api.CodeConflict when there is anything in the directory.
func (d *Dir) Empty(ctx context.Context) error {
	f, err := d.reader()
	if err != nil {
		return err
	}
	defer f.Close()
	return eachName(ctx, f, func(string) error {
		return api.Errorf(api.CodeConflict, "the workspace has files already, and a snapshot's would be mixed with them").
			WithHint("name a workspace that is new or empty, or none")
	})
}

// Clear removes all that is in the directory.
func (d *Dir) Clear() error {
	f, err := d.reader()
	if err != nil {
		return err
	}
	defer f.Close()
	mode := d.stat.Mode & 0o7777
	if err := emptyTop(f); err != nil {
		return fmt.Errorf("empty directory: %w", err)
	}
	return f.Chmod(fs.FileMode(mode & 0o777))
}

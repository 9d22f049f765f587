package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cloche-dev/cloche"
)

// Empty returns cloche.CodeConflict when there is anything in the directory.
func (d *Dir) Empty(ctx context.Context) error {
	f, err := d.reader()
	if err != nil {
		return err
	}
	defer f.Close()
	return eachName(ctx, f, func(string) error {
		return cloche.Errorf(cloche.CodeConflict, "the workspace has files already, and a snapshot's would be mixed with them").
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

// BeginFill is called before files are copied into an attached workspace that was
// found empty, and EndFill when whoever has it is there to stay. Until then Open
// empties it: nobody sees a part of the files.
func (s *Store) BeginFill(tenantName, name string) error { return s.setFilling(tenantName, name, true) }

// EndFill ends what BeginFill began.
func (s *Store) EndFill(tenantName, name string) error { return s.setFilling(tenantName, name, false) }

func (s *Store) setFilling(tenantName, name string, filling bool) error {
	t, err := s.enter(tenantName)
	if err != nil {
		return err
	}
	defer t.leave()
	r, err := t.read(name)
	if errors.Is(err, fs.ErrNotExist) && !filling {
		return nil
	}
	if err != nil {
		return err
	}
	r.Filling = filling
	return t.write(r)
}

// emptied empties the files of a workspace that was being filled by somebody who
// is no more.
func (t *tenant) emptied(r *record, dir *Dir) error {
	if !r.Filling {
		return nil
	}
	if err := dir.Clear(); err != nil {
		return err
	}
	r.Filling = false
	return t.write(r)
}

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Remove removes a workspace that no sandbox has. One that a sandbox has is
// api.CodeConflict. A crash leaves all of it or nothing.
func (s *Store) Remove(tenantName, name string) error {
	if err := s.unname(tenantName, name); err != nil {
		return err
	}
	return s.empty(tenantName, true)
}

// unname takes the workspace away, and leaves its files as trash.
func (s *Store) unname(tenantName, name string) error {
	t, err := s.enter(tenantName)
	if err != nil {
		return err
	}
	defer t.leave()
	r, err := t.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.removeOrphan(name)
	case errors.Is(err, errUnreadable):
		// What else belongs to it is not known, and is an orphan from then on.
		return t.finishRemoval(&record{Name: name, Tenant: t.name})
	case err != nil:
		return err
	}
	r.Holders = slices.DeleteFunc(r.Holders, func(h Holder) bool { return s.Alive != nil && !s.Alive(h.Owner) })
	if len(r.Holders) > 0 {
		return taken(name, r.Holders[0])
	}
	return t.remove(r)
}

// remove takes a workspace off the record; its files become trash.
func (t *tenant) remove(r *record) error {
	r.Removing, r.Holders = true, nil
	if err := t.write(r); err != nil {
		return err
	}
	return t.finishRemoval(r)
}

// finishRemoval goes on with a removal that is on record.
func (t *tenant) finishRemoval(r *record) error {
	if r.Engine != "" {
		if t.store.RemoveVolume == nil {
			return Elsewhere(r.Name, r.Engine)
		}
		if err := t.store.RemoveVolume(r.Engine, r.ID); err != nil {
			return fmt.Errorf("remove volume of workspace %s: %w", r.Name, err)
		}
	}
	trash := filepath.Join(ownDir, trashPrefix+api.NewID(""))
	if err := t.files.Rename(r.Name, trash); ignoreMissing(err) != nil {
		return fmt.Errorf("remove workspace %s: %w", r.Name, err)
	}
	if err := t.own.Remove(r.ID + diskExt); ignoreMissing(err) != nil {
		return fmt.Errorf("remove disk of workspace %s: %w", r.Name, err)
	}
	if err := t.dropProject(r.ID + projectExt); err != nil {
		return fmt.Errorf("remove project of workspace %s: %w", r.Name, err)
	}
	if err := t.own.Remove(r.Name + recordExt); ignoreMissing(err) != nil {
		return fmt.Errorf("remove record of workspace %s: %w", r.Name, err)
	}
	return nil
}

// empty removes a tenant's trash. It blocks only another call that does the
// same.
func (s *Store) empty(tenantName string, any bool) error {
	if !any {
		return nil
	}
	t, err := s.enter(tenantName)
	if err != nil {
		return err
	}
	own := t.own
	_ = t.lock.Close() // the tenant is free again
	defer t.leave()
	lock, err := lockIn(own, trashLock)
	if err != nil {
		return fmt.Errorf("lock trash: %w", err)
	}
	defer lock.Close()
	entries, err := readDir(own)
	if err != nil {
		return fmt.Errorf("list trash: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), trashPrefix) {
			errs = append(errs, RemoveTree(filepath.Join(s.dir, tenantName, ownDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Sweep ends what the sandboxes of an owner have and keep does not name, and
// removes what a process that was killed left half done. The caller ensures that
// the owner attaches nothing meanwhile.
func (s *Store) Sweep(owner string, keep func(sandbox string) bool) error {
	tenants, err := s.tenants()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range tenants {
		errs = append(errs, s.sweepTenant(name, owner, keep), s.empty(name, true))
	}
	return errors.Join(errs...)
}

// Reassign gives the workspaces of the sandboxes of one owner to the same sandboxes of another: an
// owner has another name after its home has moved.
func (s *Store) Reassign(from, to string) error {
	tenants, err := s.tenants()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range tenants {
		errs = append(errs, s.reassignTenant(name, from, to))
	}
	return errors.Join(errs...)
}

func (s *Store) reassignTenant(name, from, to string) error {
	t, err := s.enter(name)
	if err != nil {
		return err
	}
	defer t.leave()
	names, err := t.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		r, err := t.read(n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		changed := false
		for i := range r.Holders {
			if r.Holders[i].Owner == from {
				r.Holders[i].Owner, changed = to, true
			}
		}
		if changed {
			errs = append(errs, t.write(r))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) sweepTenant(name, owner string, keep func(string) bool) error {
	t, err := s.enter(name)
	if err != nil {
		return err
	}
	defer t.leave()
	names, err := t.names()
	if err != nil {
		return err
	}
	var errs []error
	known := map[string]bool{}
	for _, n := range names {
		r, err := t.read(n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		before := len(r.Holders)
		r.Holders = slices.DeleteFunc(r.Holders, func(h Holder) bool { return h.Owner == owner && !keep(h.Sandbox) })
		switch {
		case r.Removing:
			errs = append(errs, t.finishRemoval(r))
		case len(r.Holders) < before:
			errs = append(errs, t.write(r))
		}
		known[r.ID+projectExt] = true
	}
	return errors.Join(append(errs, t.sweepUnfounded(known))...)
}

// sweepUnfounded removes what a creation left that was killed before its workspace was on
// record: no sandbox has written to it. A disk or a project with files that no record tells of
// is kept, and listed. Who makes one holds the lock.
func (t *tenant) sweepUnfounded(projects map[string]bool) error {
	entries, err := readDir(t.own)
	if err != nil {
		return fmt.Errorf("list disks of tenant %s: %w", t.name, err)
	}
	var errs []error
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Name(), unfounded):
			errs = append(errs, ignoreMissing(t.own.Remove(e.Name())))
		case strings.HasSuffix(e.Name(), projectExt) && !projects[e.Name()] && t.isEmpty(e.Name()):
			errs = append(errs, t.dropProject(e.Name()))
		}
	}
	return errors.Join(errs...)
}

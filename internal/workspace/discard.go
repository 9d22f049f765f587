package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche"
)

// Remove removes a workspace that nobody has; one that somebody has is
// cloche.CodeConflict. A crash leaves all of it or none.
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
	if errors.Is(err, fs.ErrNotExist) {
		return Missing(name)
	}
	if err != nil {
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
	trash := filepath.Join(ownDir, trashPrefix+cloche.NewID(""))
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

// empty removes a tenant's trash. It holds up nobody but another that does the
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
// removes what a process that was killed left half done. Whoever calls knows that
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
	rooms := map[string]bool{}
	var errs []error
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
		rooms[r.ID+diskExt], rooms[r.ID+projectExt] = true, true
	}
	if err := errors.Join(errs...); err != nil {
		return err // whose disk or project is whose is not known
	}
	return t.sweepRooms(rooms)
}

// sweepRooms removes what a creation that was killed left. Who makes one holds
// the lock.
func (t *tenant) sweepRooms(known map[string]bool) error {
	entries, err := readDir(t.own)
	if err != nil {
		return fmt.Errorf("list disks of tenant %s: %w", t.name, err)
	}
	var errs []error
	for _, e := range entries {
		orphan := !known[e.Name()]
		switch {
		case strings.HasSuffix(e.Name(), ".new"), orphan && strings.HasSuffix(e.Name(), diskExt):
			errs = append(errs, ignoreMissing(t.own.Remove(e.Name())))
		case orphan && strings.HasSuffix(e.Name(), projectExt):
			errs = append(errs, t.dropProject(e.Name()))
		}
	}
	return errors.Join(errs...)
}

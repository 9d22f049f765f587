package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// DefaultMax is how many named workspaces a tenant has at most where the operator
// does not say.
const DefaultMax = 1000

// Wish is a named workspace as it is to be. Bounds are for one that is made; zero
// makes a plain directory.
type Wish struct {
	Tenant, Name string
	Bounds       Bounds
	Labels       map[string]string
	// Max is how many the tenant may have; 0 is DefaultMax.
	Max int
	// Engine is to keep it as a volume; empty is that its files are to be here.
	Engine string
}

// Create makes a workspace. One of that name is api.CodeExists.
func (s *Store) Create(w Wish) (api.WorkspaceInfo, error) {
	t, err := s.enter(w.Tenant)
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	defer t.leave()
	r, err := t.read(w.Name)
	if err == nil && !r.Removing {
		e := api.Errorf(api.CodeExists, "a workspace named %q exists", w.Name).
			WithHint("choose another name, or remove that one with: cloche workspace rm %s", w.Name)
		e.Field = "name"
		return api.WorkspaceInfo{}, e
	}
	if r, err = t.make(w, r, err); err != nil {
		return api.WorkspaceInfo{}, err
	}
	return r.info(), t.found(r)
}

// make makes what a record is to tell of; the caller writes that. found and err
// are what a read of the name came to.
func (t *tenant) make(w Wish, found *record, err error) (*record, error) {
	if err == nil && found.Removing {
		err = errors.Join(t.finishRemoval(found), fs.ErrNotExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	if limit := cmp.Or(w.Max, DefaultMax); len(names) >= limit {
		e := api.Errorf(api.CodeTooMany, "too many workspaces: there are %d, and max_workspaces_per_tenant is %d", len(names), limit)
		e.Rule = "max_workspaces_per_tenant"
		return nil, e.WithHint("remove one with: cloche workspace rm NAME")
	}
	r := &record{
		Version: recordVersion, ID: api.NewID(idPrefix), Tenant: t.name, Name: w.Name, Labels: w.Labels,
		SizeBytes: w.Bounds.SizeBytes, Inodes: w.Bounds.Inodes, Engine: w.Engine, CreatedAt: now(),
	}
	if w.Engine != "" {
		return r, nil // the engine makes it for the first sandbox that has it
	}
	if err := keepsFiles(); err != nil {
		return nil, err
	}
	if w.Bounds.Any() {
		if made, err := t.makeProject(r); made || err != nil {
			return r, err
		}
		return r, makeDisk(t.diskPath(r)+unfounded, w.Bounds, durable)
	}
	dir, err := t.plain(w.Name)
	if err != nil {
		return nil, err
	}
	return r, dir.Close()
}

// Attach gives a workspace to a sandbox, and makes it when it does not exist: to
// one that writes, or to any number that read. Another is api.CodeConflict,
// and so is one that has other bounds than the wish. It ends with Detach.
func (s *Store) Attach(w Wish, h Holder) (api.WorkspaceInfo, error) {
	t, err := s.enter(w.Tenant)
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	defer t.leave()
	r, err := t.read(w.Name)
	if err != nil || r.Removing {
		if r, err = t.make(w, r, err); err != nil {
			return api.WorkspaceInfo{}, err
		}
	}
	if r.bounds() != w.Bounds || r.Engine != w.Engine {
		return api.WorkspaceInfo{}, api.Errorf(api.CodeConflict, "workspace %s was made anew while the request was being decided", w.Name).
			WithHint("ask again")
	}
	r.Holders = slices.DeleteFunc(r.Holders, func(o Holder) bool { return o == h || s.Alive != nil && !s.Alive(o.Owner) })
	for _, other := range r.Holders {
		if h.ReadOnly && other.ReadOnly {
			continue
		}
		return api.WorkspaceInfo{}, taken(w.Name, other)
	}
	used := now()
	r.Holders, r.UsedAt = append(r.Holders, h), &used
	return r.info(), t.found(r)
}

// taken is the error for a workspace that a sandbox has. All sandboxes that can have it are of one
// tenant, so the error may name the sandbox.
func taken(name string, by Holder) error {
	how, hint := "to write", "wait until that one has ended, or remove it with: cloche rm -f "+by.Sandbox
	if by.ReadOnly {
		how, hint = "to read", "take it read-only as well, or wait until that one has ended"
	}
	e := api.Errorf(api.CodeConflict, "workspace %s is taken: sandbox %s has it %s", name, by.Sandbox, how).WithHint("%s", hint)
	e.Field = "workspace.name"
	return e
}

// Open opens the files of an attached workspace. The Dir of one with a disk is
// a mount below staging, as openDisk has it. The caller closes what it gets.
func (s *Store) Open(tenantName, name, staging string) (*Dir, error) {
	t, err := s.enter(tenantName)
	if err != nil {
		return nil, err
	}
	defer t.leave()
	r, err := t.read(name)
	if err != nil {
		return nil, err
	}
	var dir *Dir
	switch {
	case r.Engine != "":
		return nil, Elsewhere(name, r.Engine)
	case r.Project != 0:
		dir, err = t.openProject(r)
	case r.bounds().Any():
		dir, err = openDisk(t.diskPath(r), staging, durable)
	default:
		dir, err = t.plain(name)
	}
	if err != nil {
		return nil, err
	}
	if err := t.emptied(r, dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// BeginFill is called before files are copied into an attached workspace that was
// found empty, and EndFill when the creation of its sandbox has succeeded. Until then Open
// empties it, so that no sandbox sees a part of the files.
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

// emptied empties the files of a workspace that was being filled by a sandbox that
// no longer exists.
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

// Volume is the engine's name for an attached workspace that one keeps.
func (s *Store) Volume(tenantName, name string) (string, error) {
	t, err := s.enter(tenantName)
	if err != nil {
		return "", err
	}
	defer t.leave()
	r, err := t.read(name)
	if err != nil {
		return "", err
	}
	if r.Engine == "" {
		return "", api.Errorf(api.CodeInternal, "workspace %s is no volume", name)
	}
	return r.ID, nil
}

// DropHolder ends everything that Attach began for a sandbox of which it is not known what
// it has.
func (s *Store) DropHolder(owner, sandbox string) error {
	tenants, err := s.tenants()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range tenants {
		errs = append(errs, s.dropHolder(name, owner, sandbox))
	}
	return errors.Join(errs...)
}

func (s *Store) dropHolder(tenantName, owner, sandbox string) error {
	t, err := s.enter(tenantName)
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
			continue // its holders are not known
		}
		before := len(r.Holders)
		r.Holders = slices.DeleteFunc(r.Holders, func(h Holder) bool { return h.Owner == owner && h.Sandbox == sandbox })
		if len(r.Holders) < before {
			errs = append(errs, t.write(r))
		}
	}
	return errors.Join(errs...)
}

// Detach ends what Attach began; with drop the workspace goes, unless another has
// it. It is no error if the workspace does not exist or is not attached.
func (s *Store) Detach(tenantName, name, owner, sandbox string, drop bool) error {
	trash, err := s.detach(tenantName, name, owner, sandbox, drop)
	return errors.Join(err, s.empty(tenantName, trash))
}

func (s *Store) detach(tenantName, name, owner, sandbox string, drop bool) (trash bool, err error) {
	t, err := s.enter(tenantName)
	if err != nil {
		return false, err
	}
	defer t.leave()
	r, err := t.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	before := len(r.Holders)
	r.Holders = slices.DeleteFunc(r.Holders, func(h Holder) bool { return h.Owner == owner && h.Sandbox == sandbox })
	if drop && len(r.Holders) == 0 {
		return true, t.remove(r)
	}
	if len(r.Holders) == before {
		return false, nil
	}
	return false, t.write(r)
}

// Get tells of a workspace, and how full it is where that is cheap.
func (s *Store) Get(tenantName, name string) (api.WorkspaceInfo, error) {
	t, err := s.enter(tenantName)
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	defer t.leave()
	return t.get(name)
}

func (t *tenant) get(name string) (api.WorkspaceInfo, error) {
	r, err := t.read(name)
	if err == nil && r.Removing {
		err = fs.ErrNotExist
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.orphan(name)
	case errors.Is(err, errUnreadable):
		return t.failed(name), nil
	case err != nil:
		return api.WorkspaceInfo{}, err
	}
	info := r.info()
	if r.bounds().Any() {
		// How full it is now may not be known; what it is, is.
		if used, err := t.usage(r); err == nil {
			info.UsedBytes, info.UsedInodes = &used.SizeBytes, &used.Inodes
		}
	}
	return info, nil
}

func (t *tenant) usage(r *record) (Bounds, error) {
	if r.Project != 0 {
		return t.projectUsage(r)
	}
	return diskUsage(t.diskPath(r), r.bounds())
}

// Missing is the error for a workspace that does not exist, or not for the
// caller.
func Missing(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no workspace %q", clip(name)).WithHint("cloche workspace ls lists the ones that exist")
}

// List tells of the workspaces of the tenants that sees is true for, sorted by
// name. Each tenant has no more than its maximum. One whose record cannot be read is
// failed, and files that no record tells of are orphaned; what cannot be looked at is left
// out, and its error joined to the others.
func (s *Store) List(sees func(tenant string) bool) ([]api.WorkspaceInfo, error) {
	tenants, err := s.tenants()
	var out []api.WorkspaceInfo
	errs := []error{err}
	for _, name := range tenants {
		if !sees(name) {
			continue
		}
		t, err := s.enter(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names, err := t.names()
		orphans, oerr := t.orphans(names)
		errs = append(errs, err, oerr)
		for _, n := range slices.Concat(names, orphans) {
			info, err := t.get(n)
			switch {
			case err == nil:
				out = append(out, info)
			case !errors.Is(err, api.ErrNotFound):
				errs = append(errs, err)
			}
		}
		t.leave()
	}
	slices.SortFunc(out, func(a, b api.WorkspaceInfo) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Tenant, b.Tenant))
	})
	return out, errors.Join(errs...)
}

// tenants lists who has workspaces.
func (s *Store) tenants() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list tenants of workspaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && api.ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// now is the time that goes on record.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

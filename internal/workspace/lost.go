package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// errUnreadable says that there is a record and that it cannot be read.
var errUnreadable = errors.New("the record cannot be read")

// unreadable is the error for a workspace whose record cannot be read because of err. It is
// errUnreadable too.
func (t *tenant) unreadable(name string, err error) error {
	e := api.Errorf(api.CodeState, "workspace %s cannot be used: its record %s cannot be read", name, t.below(name+recordExt)).
		WithCause(fmt.Errorf("%w: %w", errUnreadable, err))
	return e.WithHint("restore the file; or remove what is left of the workspace with: cloche workspace rm %s", name)
}

// below is the path of one of the tenant's own files below the home, for people.
func (t *tenant) below(file string) string { return filepath.Join(namedDir, t.name, ownDir, file) }

// failed is what is shown of a workspace whose record cannot be read.
func (t *tenant) failed(name string) api.WorkspaceInfo {
	info := api.WorkspaceInfo{
		Name: name, Tenant: t.name, State: api.WorkspaceFailed, CreatedAt: now(),
		Reason: fmt.Sprintf("its record %s cannot be read; its files are kept until it is removed", t.below(name+recordExt)),
	}
	if fi, err := t.own.Lstat(name + recordExt); err == nil {
		info.CreatedAt = fi.ModTime().UTC()
	}
	return info
}

// orphans lists, by the ids of their workspaces, disks and projects that no record tells
// of. names are the tenant's workspaces.
func (t *tenant) orphans(names []string) ([]string, error) {
	known := map[string]bool{}
	for _, n := range names {
		if r, err := t.read(n); err == nil {
			known[r.ID] = true
		}
	}
	entries, err := readDir(t.own)
	if err != nil {
		return nil, fmt.Errorf("list disks of tenant %s: %w", t.name, err)
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), diskExt)
		if !ok {
			id, ok = strings.CutSuffix(e.Name(), projectExt)
		}
		if ok && api.ValidName(id) && !known[id] {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// orphan is what is shown of files that no record tells of, by the id of their workspace.
func (t *tenant) orphan(id string) (api.WorkspaceInfo, error) {
	fi, err := t.orphanFile(id)
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	info := api.WorkspaceInfo{
		Name: id, Tenant: t.name, State: api.WorkspaceOrphaned, CreatedAt: fi.ModTime().UTC(),
		Reason: fmt.Sprintf("no record that can be read tells of %s, which is kept until it is removed", t.below(fi.Name())),
	}
	if fi.Mode().IsRegular() {
		info.SizeBytes = fi.Size()
	}
	return info, nil
}

// orphanFile finds a disk or a project that no record tells of.
func (t *tenant) orphanFile(id string) (fs.FileInfo, error) {
	if !strings.HasPrefix(id, idPrefix) {
		return nil, Missing(id)
	}
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if r, err := t.read(n); err == nil && r.ID == id {
			return nil, Missing(id)
		}
	}
	for _, ext := range []string{diskExt, projectExt} {
		if fi, err := t.own.Lstat(id + ext); err == nil {
			return fi, nil
		}
	}
	return nil, Missing(id)
}

// removeOrphan removes files that no record tells of. A disk that a sandbox has is
// api.CodeConflict.
func (t *tenant) removeOrphan(id string) error {
	fi, err := t.orphanFile(id)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return t.dropProject(fi.Name())
	}
	used, err := diskInUse(filepath.Join(t.store.dir, t.name, ownDir, fi.Name()))
	if err != nil {
		return err
	}
	if used {
		return api.Errorf(api.CodeConflict, "the disk %s is in use", fi.Name()).WithHint("remove the sandbox that has it first")
	}
	if err := ignoreMissing(t.own.Remove(fi.Name())); err != nil {
		return fmt.Errorf("remove disk of workspace %s: %w", id, err)
	}
	return nil
}

// isEmpty reports whether a directory of this tenant's own has no files, in the directory
// of its files and its layer either.
func (t *tenant) isEmpty(name string) bool {
	for _, dir := range []string{filepath.Join(name, diskFiles), filepath.Join(name, diskLayer)} {
		f, err := t.own.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false
		}
		_, err = f.ReadDir(1)
		_ = f.Close()
		if !errors.Is(err, io.EOF) {
			return false
		}
	}
	return true
}

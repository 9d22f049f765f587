package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// What the store keeps of one tenant:
//
//	workspaces/TENANT/NAME/             the files of a workspace without bounds
//	workspaces/TENANT/.cloche/lock      held while anything below is looked at or changed
//	workspaces/TENANT/.cloche/NAME.json its record
//	workspaces/TENANT/.cloche/ID.ext4   the disk of one that has bounds
//	workspaces/TENANT/.cloche/ID.project/ or its project
//	workspaces/TENANT/.cloche/trash-ID  files that are being removed
//
// A directory without a record was made by an earlier build; it is given one
// when it is first used.
const (
	ownDir      = ".cloche"
	recordExt   = ".json"
	diskExt     = ".ext4"
	trashPrefix = "trash-"
	// unfounded ends the name of a disk until its workspace is on record: no sandbox has
	// written to it.
	unfounded = ".new"
	// diskFiles is the directory of a disk or a project that a sandbox sees, and diskLayer
	// what a sandbox writes over it that has it layered.
	diskFiles = "files"
	diskLayer = "layer"
	lockName  = "lock"
	trashLock = "trash.lock"
	// maxRecord bounds what is read of a record.
	maxRecord = 4 << 20
)

// recordVersion is the format of record.
const recordVersion = 1

// record is what survives about one workspace.
type record struct {
	Version           int
	ID, Tenant, Name  string
	Labels            map[string]string `json:",omitempty"`
	SizeBytes, Inodes int64             `json:",omitempty"`
	// Project is the id by which the home's filesystem holds it to its bounds; 0 is
	// that it has a disk, if it has bounds.
	Project uint32 `json:",omitempty"`
	// Engine keeps it as a volume; empty is that its files are here.
	Engine    string `json:",omitempty"`
	CreatedAt time.Time
	UsedAt    *time.Time `json:",omitempty"`
	Holders   []Holder   `json:",omitempty"`
	// Filling: what is in it is a part of what is being copied into it.
	Filling bool `json:",omitempty"`
	// Removing: the reader of this record finishes the removal.
	Removing bool `json:",omitempty"`
}

// Holder is a sandbox that has a workspace.
type Holder struct {
	// Owner is the daemon or in-process run that the sandbox belongs to.
	Owner, Sandbox string
	ReadOnly       bool `json:",omitempty"`
}

// bounds are zero for a workspace that is a plain directory.
func (r *record) bounds() Bounds { return Bounds{r.SizeBytes, r.Inodes} }

func (r *record) info() api.WorkspaceInfo {
	info := api.WorkspaceInfo{
		Name: r.Name, Tenant: r.Tenant, Labels: r.Labels, SizeBytes: r.SizeBytes, Inodes: r.Inodes,
		Engine: r.Engine, CreatedAt: r.CreatedAt, UsedAt: r.UsedAt,
	}
	if r.bounds().Any() {
		info.Enforced = api.HeldByKernel
	}
	for _, h := range r.Holders {
		info.Sandboxes = append(info.Sandboxes, h.Sandbox)
	}
	return info
}

// tenant is one tenant's part of the store, locked against everybody else on
// this machine. Its holder may do I/O, but nothing that takes long.
type tenant struct {
	store *Store
	name  string
	files *os.Root // workspaces/TENANT
	own   *os.Root // its .cloche
	lock  *os.File
}

// enter locks a tenant's part, which is made when it is missing.
func (s *Store) enter(name string) (_ *tenant, err error) {
	if !api.ValidName(name) {
		return nil, api.Errorf(api.CodeInvalid, "tenant %q has no name under which workspaces can be kept", clip(name))
	}
	own := &tenant{store: s, name: name}
	defer func() {
		if err != nil {
			own.leave()
		}
	}()
	if err := own.open(); err != nil {
		return nil, err
	}
	if own.lock, err = lockIn(own.own, lockName); err != nil {
		return nil, fmt.Errorf("lock workspaces of tenant %s: %w", name, err)
	}
	return own, nil
}

// lockIn takes the lock of a file, which is made; closing it gives the lock up,
// and so does the end of this process.
func lockIn(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := hostfile.Lock(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// leave unlocks it.
func (t *tenant) leave() {
	// Nothing was written through them. A nil file may be closed, a nil root not.
	_ = t.lock.Close()
	for _, root := range []*os.Root{t.own, t.files} {
		if root != nil {
			_ = root.Close()
		}
	}
}

// read returns a record; fs.ErrNotExist says that there is no such workspace.
func (t *tenant) read(name string) (*record, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	f, err := t.own.Open(name + recordExt)
	if errors.Is(err, fs.ErrNotExist) {
		return t.adopt(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read record of workspace %s: %w", name, err)
	}
	defer f.Close()
	r := &record{}
	fi, err := f.Stat()
	if err == nil && fi.Size() > maxRecord {
		err = fmt.Errorf("it has %d bytes", fi.Size())
	}
	if err == nil {
		err = json.NewDecoder(f).Decode(r)
	}
	if err == nil && (r.Version != recordVersion || r.Name != name || r.Tenant != t.name) {
		err = fmt.Errorf("it is of version %d and of workspace %q of %q", r.Version, clip(r.Name), clip(r.Tenant))
	}
	if err != nil {
		return nil, t.unreadable(name, err)
	}
	return r, t.nameDisk(r)
}

// adopt makes the record of a directory that has none.
func (t *tenant) adopt(name string) (*record, error) {
	fi, err := t.files.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("find workspace %s: %w", name, err)
	}
	if !fi.IsDir() {
		return nil, api.Invalid("workspace.name", "workspace %q is kept as something that is not a directory", name).
			WithHint("remove what lies in its place, or choose another name")
	}
	return &record{Version: recordVersion, ID: api.NewID(idPrefix), Tenant: t.name, Name: name, CreatedAt: fi.ModTime().UTC()}, nil
}

const idPrefix = "ws-"

// write stores a record durably: a crash or a power cut leaves the old one or the new one.
func (t *tenant) write(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if err := hostfile.Replace(t.own, r.Name+recordExt, data); err != nil {
		return noSpace(fmt.Errorf("write record of workspace %s: %w", r.Name, err))
	}
	return nil
}

// found puts a workspace that make has made on record, which is what makes it one.
func (t *tenant) found(r *record) error {
	if err := t.write(r); err != nil {
		return errors.Join(err, ignoreMissing(t.own.Remove(r.ID+diskExt+unfounded)))
	}
	return t.nameDisk(r)
}

// nameDisk gives the disk of a workspace the name that it has once the workspace is on
// record.
func (t *tenant) nameDisk(r *record) error {
	if r.Engine != "" || r.Project != 0 || !r.bounds().Any() {
		return nil
	}
	name := r.ID + diskExt
	if err := ignoreMissing(t.own.Rename(name+unfounded, name)); err != nil {
		return fmt.Errorf("name disk of workspace %s: %w", r.Name, err)
	}
	return nil
}

// names lists the tenant's workspaces, sorted.
func (t *tenant) names() ([]string, error) {
	var names []string
	for _, part := range []struct {
		root *os.Root
		ext  string
	}{{t.own, recordExt}, {t.files, ""}} {
		entries, err := readDir(part.root)
		if err != nil {
			return nil, fmt.Errorf("list workspaces of tenant %s: %w", t.name, err)
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(e.Name(), part.ext)
			if ok && api.ValidName(name) && e.IsDir() == (part.ext == "") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func readDir(root *os.Root) ([]fs.DirEntry, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// diskPath is where the disk of a workspace is.
func (t *tenant) diskPath(r *record) string {
	return filepath.Join(t.store.dir, t.name, ownDir, r.ID+diskExt)
}

func checkName(name string) error {
	if api.ValidName(name) {
		return nil
	}
	return api.Invalid("workspace.name", "workspace name %q is not one", clip(name)).
		WithHint("a name has 1 to %d of a-z, 0-9, '-', '_' and '.', and begins with a letter or digit", api.MaxNameLen)
}

// Package template has the files of a sandbox that was captured, from which others are made that continue from the same
// memory. The files have the names that they have in the directory of a sandbox.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Names of directories.
const (
	// parents contains a directory for each template, below the directory of the owner.
	parents = "templates"
	files   = "workspace"
)

// Kept are directories and files of a sandbox that each of its forks gets a copy of, beside the memory.
type Kept []string

// Template is the directory of one capture. Until Remove, its files do not change.
type Template struct{ dir string }

// Make makes the directory of a template below owner, the directory of the owner of the sandboxes.
func Make(owner string) (*Template, error) {
	parent := filepath.Join(owner, parents)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of templates: %w", err)
	}
	t := &Template{filepath.Join(parent, api.NewID("tm-"))}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of a template: %w", err)
	}
	return t, nil
}

// Sweep removes the templates that a daemon left which died.
func Sweep(owner string) error {
	if err := workspace.RemovePrivate(filepath.Join(owner, parents)); err != nil {
		return fmt.Errorf("remove templates: %w", err)
	}
	return nil
}

// Remove removes the files. The sandboxes that were made from them do not need them.
func (t *Template) Remove() error {
	if err := workspace.RemovePrivate(t.dir); err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// In returns the template of an empty directory that exists, whose owner removes it, or of one that has been written.
func In(dir string) *Template { return &Template{dir} }

// WriteRecord completes a template that outlives the daemon: it stores the record of the parent, as it was at the capture,
// and waits until that and what was kept are on the disk.
func (t *Template) WriteRecord(r *record.Record, kept Kept) error {
	if err := hostfile.SyncDirAt(t.Memory()); err != nil { // its files are, since the suspend
		return fmt.Errorf("write template: %w", err)
	}
	for _, name := range kept {
		err := hostfile.SyncTree(filepath.Join(t.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write template: %w", err)
		}
	}
	return r.Write(t.dir, true)
}

// Read returns the record of the parent and the memory of the template that a snapshot has.
func (t *Template) Read(snap api.Snapshot) (*record.Record, engine.Memory, error) {
	r, err := record.ReadAs(t.dir, snap.Sandbox)
	if err != nil {
		return nil, engine.Memory{}, fmt.Errorf("read template: %w", err)
	}
	memory := engine.Memory{Dir: t.Memory(), Bytes: snap.MemoryBytes, Note: r.Memory}
	if memory.Sum() != snap.MemorySum || r.Spec == nil {
		return nil, engine.Memory{}, errors.New("read template: it does not belong to the record of the snapshot")
	}
	return r, memory, nil
}

// Snapshot is the record of the snapshot that has a template.
func Snapshot(id string, parent api.Sandbox, m engine.Memory, copied workspace.CopyReport, req api.SnapshotRequest) api.Snapshot {
	return api.Snapshot{
		ID: id, Name: cmp.Or(req.Name, id), Tenant: parent.Tenant, Scope: api.SnapshotMemory, Sandbox: parent.ID, Image: parent.Image, ImageDigest: parent.ImageDigest,
		WorkspacePath: parent.Workspace.Path, SizeBytes: copied.Bytes + m.Bytes, WorkspaceBytes: copied.Bytes, MemoryBytes: m.Bytes, MemorySum: m.Sum(),
		Consistent: true, Left: copied.Left, Labels: req.Labels, CreatedAt: time.Now().UTC(),
	}
}

// Memory is the directory of the memory.
func (t *Template) Memory() string { return filepath.Join(t.dir, directory.Memory) }

// LinkMemory gives the template links to the files of a saved memory, which are never written again. It returns their directory.
func (t *Template) LinkMemory(from string) (string, error) {
	to := t.Memory()
	entries, err := os.ReadDir(from)
	if err != nil {
		return "", fmt.Errorf("list the files of the memory: %w", err)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", fmt.Errorf("make directory of the memory: %w", err)
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return "", fmt.Errorf("link the memory: %w", err)
		}
	}
	return to, nil
}

// Files is where the files of the private workspace are, or are to be put.
func (t *Template) Files() string { return filepath.Join(t.dir, files) }

// Keep copies from the directory of a sandbox what its forks get. A file that does not exist is left out.
func (t *Template) Keep(sandbox string, kept Kept) error { return copyAll(sandbox, t.dir, kept) }

// Give gives the directory of a new sandbox copies of what was kept.
func (t *Template) Give(sandbox string, kept Kept) error { return copyAll(t.dir, sandbox, kept) }

// copyAll copies files and directories between two directories of Cloche's own.
func copyAll(from, to string, names Kept) error {
	for _, name := range names {
		src, dst := filepath.Join(from, name), filepath.Join(to, name)
		fi, err := os.Lstat(src)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(dst), 0o700)
		}
		switch {
		case err != nil:
		case fi.IsDir():
			err = os.CopyFS(dst, os.DirFS(src))
		default:
			var data []byte
			if data, err = os.ReadFile(src); err == nil {
				err = hostfile.ReplaceIn(filepath.Dir(dst), filepath.Base(dst), data)
			}
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	return nil
}

// Package template has the files of a sandbox that was captured, from which others are made that continue from the same
// memory. The files have the names that they have in the directory of a sandbox.
package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
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

// LinkMemory gives the template links to the files of a saved memory, which are never written again. It returns their directory.
func (t *Template) LinkMemory(from string) (string, error) {
	to := filepath.Join(t.dir, directory.Memory)
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

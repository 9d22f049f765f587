package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openStore makes the directory of named workspaces below the home, whose access list it
// has, and returns its path.
func openStore(home string) (string, error) {
	dir := filepath.Join(home, namedDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("open named workspaces: %w", err)
	}
	return dir, nil
}

// open opens the directories of a tenant, which are made when they are missing.
func (t *tenant) open() error {
	top, err := os.OpenRoot(t.store.dir)
	if err != nil {
		return fmt.Errorf("open named workspaces: %w", err)
	}
	defer top.Close()
	if err := top.MkdirAll(filepath.Join(t.name, ownDir), 0o700); err != nil {
		return fmt.Errorf("make records of tenant %s: %w", t.name, err)
	}
	if t.files, err = top.OpenRoot(t.name); err != nil {
		return fmt.Errorf("open workspaces of tenant %s: %w", t.name, err)
	}
	if t.own, err = t.files.OpenRoot(ownDir); err != nil {
		return fmt.Errorf("open records of tenant %s: %w", t.name, err)
	}
	return nil
}

// plain opens none: no files of workspaces are kept here.
func (*tenant) plain(string) (*Dir, error) { return nil, keepsFiles() }

// RemoveTree removes a directory with all that is in it. No sandbox writes there: their
// files are on another machine. A directory that is gone already is no error.
func RemoveTree(path string) error {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	defer parent.Close()
	if err := parent.RemoveAll(filepath.Base(path)); err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

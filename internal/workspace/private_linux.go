//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Private makes the directory at path, the parent of which only this user may
// enter, and opens it. The caller closes what it gets and owns what is on disk.
func Private(path string) (*Dir, error) {
	parent, err := openParent(path)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	f, err := ensureFiles(parent, filepath.Base(path), 0o777)
	if err != nil {
		return nil, noSpace(fmt.Errorf("make private workspace: %w", err))
	}
	return newDir(f, true)
}

// PrivateBounded is Private for a workspace with bounds that the kernel holds: path
// without an ending is the path of a project, or else of a disk, which is made when neither
// exists, and whose base name no other file on this machine has. The Dir of a disk is a
// mount below staging, as openDisk has it. What calls is the only one that opens it.
func PrivateBounded(path, staging string, b Bounds) (*Dir, error) {
	parent, err := openParent(path)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	own, err := rootOf(parent)
	if err != nil {
		return nil, fmt.Errorf("open parent of private workspace: %w", err)
	}
	defer own.Close()
	project := filepath.Base(path) + projectExt
	_, noProject := own.Lstat(project)
	_, noDisk := own.Lstat(filepath.Base(path) + diskExt)
	var id uint32
	switch {
	case noProject == nil:
		// Files that were copied elsewhere are of no project. Nothing writes to them any more.
		err = inDir(own, project, func(dir *os.File) (err error) { id, err = projectOf(dir); return err })
	case noDisk == nil:
		return privateDisk(path+diskExt, staging, b)
	default:
		if id, err = makeProjectIn(own, project, b); id == 0 && err == nil {
			return privateDisk(path+diskExt, staging, b)
		}
	}
	if err != nil {
		return nil, err
	}
	return openProjectAt(path+projectExt, id)
}

// privateDisk is PrivateBounded for what is or becomes a disk.
func privateDisk(path, staging string, b Bounds) (*Dir, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeDisk(path, b, fleeting); err != nil {
			return nil, err
		}
	}
	return openDisk(path, staging, fleeting)
}

// openParent opens the parent of a private workspace, which only this user may enter.
func openParent(path string) (*os.File, error) {
	parent, err := openOwn(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open parent of private workspace: %w", err)
	}
	if err := ours(parent, 0o077); err != nil {
		_ = parent.Close()
		return nil, fmt.Errorf("make private workspace: parent: %w", err)
	}
	return parent, nil
}

// RemovePrivate removes a directory with the private workspaces in it, and frees what
// the home's filesystem holds of them. It may be called again for what a crash left of it.
func RemovePrivate(dir string) error {
	own, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		return RemoveTree(dir)
	}
	if err != nil {
		return fmt.Errorf("remove private workspaces: %w", err)
	}
	defer own.Close()
	entries, err := readDir(own)
	if err != nil {
		return fmt.Errorf("remove private workspaces: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), projectExt) {
			err = errors.Join(err, ignoreMissing(freeProject(own, e.Name())))
		}
	}
	return errors.Join(err, RemoveTree(dir))
}

// keepsFiles says why no files of workspaces are kept on this machine; nil is that they
// are.
func keepsFiles() error { return nil }

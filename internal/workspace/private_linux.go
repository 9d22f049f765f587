//go:build !elsewhere

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Private makes the directory at path, the parent of which only this user may
// enter, and opens it. The caller closes what it gets and owns what is on disk.
func Private(path string) (*Dir, error) {
	parent, err := openOwn(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open parent of private workspace: %w", err)
	}
	defer parent.Close()
	if err := ours(parent, 0o077); err != nil {
		return nil, fmt.Errorf("make private workspace: parent: %w", err)
	}
	f, err := ensureFiles(parent, filepath.Base(path), 0o777)
	if err != nil {
		return nil, noRoom(fmt.Errorf("make private workspace: %w", err))
	}
	return newDir(f, true)
}

// PrivateDisk is Private for a workspace with bounds: path is that of its disk,
// which is made when it is missing, and whose base name no other file on this
// machine has. The Dir is a mount below staging, as openDisk has it. What calls
// is the only one that opens it.
func PrivateDisk(path, staging string, b Bounds) (*Dir, error) {
	if _, err := os.Lstat(path); errors.Is(err, unix.ENOENT) {
		if err := makeDisk(path, b, fleeting); err != nil {
			return nil, err
		}
	}
	return openDisk(path, staging, fleeting)
}

// keepsFiles says why no files of workspaces are kept on this machine; nil is that they
// are.
func keepsFiles() error { return nil }

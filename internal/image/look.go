package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
)

// Tree is an image that is open to be looked into. It is not safe for concurrent
// use.
type Tree struct {
	file *os.File
	root fs.FS
}

// Stat is what an image has at a path.
type Stat struct {
	Type api.FileType
	// Size is the size of a file's content.
	Size int64
	// Mode holds the permission, setuid, setgid and sticky bits.
	Mode     uint32
	UID, GID uint32
}

// OpenTree opens the image that lies in a file; the caller closes it.
func OpenTree(file string) (*Tree, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	root, err := erofs.Open(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read image: %w", err), f.Close())
	}
	return &Tree{file: f, root: root}, nil
}

// Lstat tells what is at a path, which is relative and clean, without following a
// symlink; false is nothing.
func (t *Tree) Lstat(name string) (Stat, bool) {
	info, err := t.lstat(name)
	if err != nil {
		return Stat{}, false
	}
	st := Stat{Type: api.TypeOther, Mode: erofstar.Mode(info)}
	if sys, ok := info.Sys().(*erofs.Stat); ok {
		st.UID, st.GID = sys.UID, sys.GID
	}
	switch info.Mode().Type() {
	case 0:
		st.Type, st.Size = api.TypeFile, info.Size()
	case fs.ModeDir:
		st.Type = api.TypeDir
	case fs.ModeSymlink:
		st.Type = api.TypeSymlink
	}
	return st, true
}

func (t *Tree) lstat(name string) (fs.FileInfo, error) { return erofstar.Lstat(t.root, name) }

// Names lists a directory; anything else has no names.
func (t *Tree) Names(dir string) []string {
	entries, err := fs.ReadDir(t.root, dir)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Close lets go of the image.
func (t *Tree) Close() error { return t.file.Close() }

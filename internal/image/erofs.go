package image

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// The on-disk format is EROFS, as in Linux's fs/erofs: one superblock, 64-byte
// extended inodes, directories and files as plain runs of whole blocks. Nothing
// is packed behind an inode but the text of a symlink, because gVisor cannot map
// a file whose data stands there; and no xattrs are written, because gVisor
// refuses an inode that has any.
const (
	blockSize     = 4096
	inodeSize     = 64
	nidUnit       = 32
	direntSize    = 12
	superOffset   = 1024
	superMagic    = 0xE0F5E1E2
	maxNameLen    = 255
	maxTargetLen  = 4095
	featureSBCsum = 1

	formatExtended = 1      // bit 0 of an inode's format
	layoutPlain    = 0 << 1 // bits 1 to 3
	layoutInline   = 2 << 1

	modeDir     = 0o040000
	modeFile    = 0o100000
	modeSymlink = 0o120000

	direntFile    = 1
	direntDir     = 2
	direntSymlink = 7
)

// tree is a filesystem to be written. Everything in it belongs to root and has
// the time 0 unless said otherwise, so that equal content gives equal images.
type tree struct {
	root *node
	// steps counts the parts of paths that were walked.
	steps int
}

// node is one inode. A file or symlink may be the child of several directories,
// or of one under several names: these are hard links.
type node struct {
	mode     uint16
	uid, gid uint32
	sec      int64 // of the time of change
	nsec     uint32
	children map[string]*node // of a directory
	target   string           // of a symlink
	size     int64            // of a file
	// open gives the content of a file: size bytes, not less.
	open func() (io.ReadCloser, error)
	// placed: the content of the file is in the image already, from block on.
	placed bool
	block  int64 // first block of the data

	// What follows is set when the image is laid out.
	parent *node
	ino    uint32
	names  uint32 // how many
	sorted []string
	offset int64 // of the inode in the metadata area
	bytes  int64 // length of the data as stored
}

func newTree() *tree {
	return &tree{root: newDir()}
}

func newDir() *node { return &node{mode: modeDir | 0o755, children: map[string]*node{}} }

// parent returns the directory that holds name, making what is missing of it.
func (t *tree) parent(name string) (*node, string, error) {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil, "", errors.New("the root is there already")
	}
	dir := t.root
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if len(part) > maxNameLen || strings.ContainsRune(part, 0) {
			return nil, "", fmt.Errorf("name %q cannot be stored", part)
		}
	}
	for _, part := range parts[:len(parts)-1] {
		next, ok := dir.children[part]
		if !ok {
			next = newDir()
			dir.children[part] = next
		}
		if next.children == nil {
			return nil, "", fmt.Errorf("%q in %q is not a directory", part, name)
		}
		dir = next
	}
	return dir, parts[len(parts)-1], nil
}

func (t *tree) add(name string, n *node) error {
	dir, base, err := t.parent(name)
	if err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	if old, ok := dir.children[base]; ok {
		if old.children == nil || n.children == nil {
			return fmt.Errorf("add %s: it exists", name)
		}
		old.become(n)
		return nil
	}
	dir.children[base] = n
	return nil
}

// become gives a directory the attributes of another.
func (n *node) become(other *node) {
	n.mode, n.uid, n.gid, n.sec, n.nsec = other.mode, other.uid, other.gid, other.sec, other.nsec
}

// dir adds a directory, or changes the mode of one that is there.
func (t *tree) dir(name string, perm uint16) error {
	return t.add(name, &node{mode: modeDir | perm, children: map[string]*node{}})
}

// ownedDir is dir for a directory that is not root's.
func (t *tree) ownedDir(name string, perm uint16, uid, gid uint32) error {
	return t.add(name, &node{mode: modeDir | perm, uid: uid, gid: gid, children: map[string]*node{}})
}

// symlink adds a symlink.
func (t *tree) symlink(name, target string) error {
	if target == "" || len(target) > maxTargetLen || strings.ContainsRune(target, 0) {
		return fmt.Errorf("add symlink %s: target of %d bytes cannot be stored", name, len(target))
	}
	return t.add(name, &node{mode: modeSymlink | 0o777, target: target})
}

// text adds a file with the given content.
func (t *tree) text(name string, perm uint16, content []byte) error {
	return t.file(name, perm, int64(len(content)), func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(string(content))), nil
	})
}

// file adds a file whose content is opened when the image is written.
func (t *tree) file(name string, perm uint16, size int64, open func() (io.ReadCloser, error)) error {
	return t.add(name, &node{mode: modeFile | perm, size: size, open: open})
}

// has reports whether name is a directory of the tree.
func (t *tree) has(name string) bool {
	dir := t.root
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if part == "" {
			continue
		}
		if dir = dir.children[part]; dir == nil || dir.children == nil {
			return false
		}
	}
	return true
}

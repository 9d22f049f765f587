package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"slices"
	"strings"
)

// The on-disk format is that of Linux's fs/erofs: one superblock, 64-byte
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

// tree is a filesystem to be written. Everything in it belongs to root unless
// said otherwise and has the time 0, so that equal content gives equal images.
type tree struct {
	root *node
}

// node is one inode.
type node struct {
	name     string
	mode     uint16
	uid, gid uint32
	children map[string]*node // of a directory
	target   string           // of a symlink
	size     int64            // of a file
	// open gives the content of a file: size bytes, not less.
	open func() (io.ReadCloser, error)

	offset int64 // of the inode in the metadata area
	block  int64 // first block of the data
	bytes  int64 // length of the data as stored
}

func newTree() *tree {
	return &tree{root: &node{mode: modeDir | 0o755, children: map[string]*node{}}}
}

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
			next = &node{name: part, mode: modeDir | 0o755, children: map[string]*node{}}
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
		old.mode, old.uid, old.gid = n.mode, n.uid, n.gid
		return nil
	}
	n.name = base
	dir.children[base] = n
	return nil
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

// write writes the image front to back.
func (t *tree) write(w io.Writer) error {
	nodes := t.plan()
	meta := blocks(nodes[len(nodes)-1].end())
	next := 1 + meta
	for _, n := range nodes {
		if n.bytes > 0 && !n.inline() {
			n.block = next
			next += blocks(n.bytes)
		}
	}
	if next >= 1<<32 {
		return fmt.Errorf("write image: %d blocks are more than the format can count", next)
	}
	if _, err := w.Write(superblock(uint64(len(nodes)), uint32(next))); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	area := make([]byte, meta*blockSize)
	for i, n := range nodes {
		n.encode(area[n.offset:], uint32(i+1))
	}
	if _, err := w.Write(area); err != nil {
		return fmt.Errorf("write inodes: %w", err)
	}
	return t.writeData(w)
}

func (t *tree) writeData(w io.Writer) error {
	buf := make([]byte, 256<<10)
	var walk func(n, parent *node) error
	walk = func(n, parent *node) error {
		if err := n.writeData(w, parent, buf); err != nil {
			return fmt.Errorf("write data of %q: %w", n.name, err)
		}
		for _, c := range n.sorted() {
			if err := walk(c, n); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(t.root, t.root)
}

// plan gives every inode its place, parents first and in the order of names.
func (t *tree) plan() []*node {
	var nodes []*node
	var off int64
	var walk func(n *node)
	walk = func(n *node) {
		n.bytes = n.dataSize()
		// The text of a symlink must end in the block in which it begins.
		if n.inline() && off%blockSize+inodeSize+n.bytes > blockSize {
			off = blocks(off) * blockSize
		}
		n.offset = off
		off = (n.end() + inodeSize - 1) / inodeSize * inodeSize
		nodes = append(nodes, n)
		for _, c := range n.sorted() {
			walk(c)
		}
	}
	walk(t.root)
	return nodes
}

func (n *node) end() int64 {
	if n.inline() {
		return n.offset + inodeSize + n.bytes
	}
	return n.offset + inodeSize
}

// inline: the data stands behind the inode. Only for symlinks that fit.
func (n *node) inline() bool {
	return n.target != "" && len(n.target) <= blockSize-inodeSize
}

func (n *node) sorted() []*node {
	list := make([]*node, 0, len(n.children))
	for _, c := range n.children {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return list
}

func (n *node) dataSize() int64 {
	switch {
	case n.children != nil:
		return int64(len(n.dirents(n)))
	case n.target != "":
		return int64(len(n.target))
	}
	return n.size
}

func (n *node) encode(b []byte, ino uint32) {
	layout := uint16(layoutPlain)
	if n.inline() {
		layout = layoutInline
		copy(b[inodeSize:], n.target)
	}
	nlink := uint32(1)
	if n.children != nil {
		nlink = 2
		for _, c := range n.children {
			if c.children != nil {
				nlink++
			}
		}
	}
	le := binary.LittleEndian
	le.PutUint16(b[0:], formatExtended|layout)
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], uint64(n.bytes))
	le.PutUint32(b[16:], uint32(n.block))
	le.PutUint32(b[20:], ino)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint32(b[44:], nlink)
}

func (n *node) writeData(w io.Writer, parent *node, buf []byte) error {
	switch {
	case n.bytes == 0 || n.inline():
		return nil
	case n.children != nil:
		if _, err := w.Write(n.dirents(parent)); err != nil {
			return err
		}
	case n.target != "":
		if _, err := io.WriteString(w, n.target); err != nil {
			return err
		}
	default:
		r, err := n.open()
		if err != nil {
			return err
		}
		defer r.Close()
		// The destination's own ReadFrom would use a buffer of its own.
		written, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(r, n.bytes), buf)
		if err != nil {
			return err
		}
		if written != n.bytes {
			return fmt.Errorf("the source has %d bytes where %d were expected: %w", written, n.bytes, io.ErrUnexpectedEOF)
		}
	}
	pad := blocks(n.bytes)*blockSize - n.bytes
	_, err := w.Write(make([]byte, pad))
	return err
}

// dirents encodes a directory: blocks of entries, each block with its entries'
// heads first and then their names, sorted by bytes over the whole.
func (n *node) dirents(parent *node) []byte {
	type entry struct {
		name string
		nid  uint64
		kind byte
	}
	list := []entry{{".", n.nid(), direntDir}, {"..", parent.nid(), direntDir}}
	for _, c := range n.children {
		kind := byte(direntFile)
		switch {
		case c.children != nil:
			kind = direntDir
		case c.target != "":
			kind = direntSymlink
		}
		list = append(list, entry{c.name, c.nid(), kind})
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })

	var out []byte
	for len(list) > 0 {
		count, used := 0, 0
		for count < len(list) && used+direntSize+len(list[count].name) <= blockSize {
			used += direntSize + len(list[count].name)
			count++
		}
		nameOff := count * direntSize
		var heads, names []byte
		for _, e := range list[:count] {
			heads = binary.LittleEndian.AppendUint64(heads, e.nid)
			heads = binary.LittleEndian.AppendUint16(heads, uint16(nameOff+len(names)))
			heads = append(heads, e.kind, 0)
			names = append(names, e.name...)
		}
		out = append(append(out, heads...), names...)
		if list = list[count:]; len(list) > 0 {
			out = append(out, make([]byte, blockSize-used)...)
		}
	}
	return out
}

func (n *node) nid() uint64 { return uint64(n.offset / nidUnit) }

func superblock(inodes uint64, total uint32) []byte {
	block := make([]byte, blockSize)
	sb := block[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(sb[0:], superMagic)
	le.PutUint32(sb[8:], featureSBCsum)
	sb[12] = 12 // log2 of the block size
	le.PutUint64(sb[16:], inodes)
	le.PutUint32(sb[36:], total)
	le.PutUint32(sb[40:], 1) // the inodes begin at block 1, the root is the first
	// CRC-32C as the kernel computes it: without the final inversion.
	le.PutUint32(sb[4:], ^crc32.Checksum(sb, crc32.MakeTable(crc32.Castagnoli)))
	return block
}

func blocks(n int64) int64 { return (n + blockSize - 1) / blockSize }

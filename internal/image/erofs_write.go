package image

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
)

// layout is a tree with a place for each of its inodes.
type layout struct {
	nodes []*node // parents first, each once
	// first is the block at which the inodes begin, and meta how many blocks they
	// have.
	first, meta int64
	// end is the block behind the last.
	end int64
}

// write writes the image front to back. It may be done once for a tree.
func (t *tree) write(w io.Writer) error {
	l, err := t.layOut(1)
	if err != nil {
		return err
	}
	if _, err := w.Write(l.superblock()); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	return l.write(w)
}

// layOut gives every inode its place from block first on, and behind them all
// data that has none yet.
func (t *tree) layOut(first int64) (*layout, error) {
	l := &layout{nodes: t.plan(), first: first}
	l.meta = blocks(l.nodes[len(l.nodes)-1].end())
	l.end = first + l.meta
	for _, n := range l.nodes {
		if n.bytes > 0 && !n.inline() && !n.placed {
			n.block = l.end
			l.end += blocks(n.bytes)
		}
	}
	if l.end >= 1<<32 {
		return nil, fmt.Errorf("write image: %d blocks are more than the format can count", l.end)
	}
	return l, nil
}

// write writes the inodes and the data behind them: what belongs at block first.
func (l *layout) write(w io.Writer) error {
	area := make([]byte, l.meta*blockSize)
	for _, n := range l.nodes {
		n.encode(area[n.offset:])
	}
	if _, err := w.Write(area); err != nil {
		return fmt.Errorf("write inodes: %w", err)
	}
	buf := make([]byte, 256<<10)
	for _, n := range l.nodes {
		if err := n.writeData(w, buf); err != nil {
			return fmt.Errorf("write data: %w", err)
		}
	}
	return nil
}

// plan gives every inode its offset, parents first and in the order of names.
func (t *tree) plan() []*node {
	var nodes []*node
	var off int64
	var walk func(n, parent *node)
	walk = func(n, parent *node) {
		if n.names++; n.names > 1 {
			return // another name of a file that has its place
		}
		n.parent = parent
		n.arrange()
		n.bytes = n.dataSize()
		// The text of a symlink must end in the block in which it begins.
		if n.inline() && off%blockSize+inodeSize+n.bytes > blockSize {
			off = blocks(off) * blockSize
		}
		n.offset = off
		off = (n.end() + inodeSize - 1) / inodeSize * inodeSize
		nodes = append(nodes, n)
		n.ino = uint32(len(nodes))
		for _, name := range n.sorted {
			if c, ok := n.children[name]; ok {
				walk(c, n)
			}
		}
	}
	walk(t.root, t.root)
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

// arrange puts the names of a directory into the order of their bytes, those of
// itself and its parent among them.
func (n *node) arrange() {
	if n.children == nil {
		return
	}
	n.sorted = slices.AppendSeq(make([]string, 0, len(n.children)+2), maps.Keys(n.children))
	n.sorted = append(n.sorted, ".", "..")
	slices.Sort(n.sorted)
}

func (n *node) dataSize() int64 {
	switch {
	case n.children != nil:
		return n.direntsSize()
	case n.target != "":
		return int64(len(n.target))
	}
	return n.size
}

func (n *node) encode(b []byte) {
	layout := uint16(layoutPlain)
	if n.inline() {
		layout = layoutInline
		copy(b[inodeSize:], n.target)
	}
	links := n.names
	if n.children != nil {
		links = 2
		for _, c := range n.children {
			if c.children != nil {
				links++
			}
		}
	}
	le := binary.LittleEndian
	le.PutUint16(b[0:], formatExtended|layout)
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], uint64(n.bytes))
	le.PutUint32(b[16:], uint32(n.block))
	le.PutUint32(b[20:], n.ino)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.sec))
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], links)
}

func (n *node) writeData(w io.Writer, buf []byte) error {
	switch {
	case n.bytes == 0 || n.inline() || n.placed:
		return nil
	case n.children != nil:
		if _, err := w.Write(n.dirents()); err != nil {
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

// fit is how many of names, and with them how many bytes, go into one block of a
// directory.
func fit(names []string) (count, used int) {
	for count < len(names) && used+direntSize+len(names[count]) <= blockSize {
		used += direntSize + len(names[count])
		count++
	}
	return count, used
}

func (n *node) direntsSize() (size int64) {
	for names := n.sorted; len(names) > 0; {
		count, used := fit(names)
		if names = names[count:]; len(names) > 0 {
			used = blockSize
		}
		size += int64(used)
	}
	return size
}

// dirents encodes a directory: blocks of entries, each block with its entries'
// heads first and then their names, sorted by bytes over the whole.
func (n *node) dirents() []byte {
	out := make([]byte, 0, n.bytes)
	for names := n.sorted; len(names) > 0; {
		count, used := fit(names)
		nameOff := count * direntSize
		for _, name := range names[:count] {
			c, kind := n.child(name)
			out = binary.LittleEndian.AppendUint64(out, c.nid())
			out = binary.LittleEndian.AppendUint16(out, uint16(nameOff))
			out = append(out, kind, 0)
			nameOff += len(name)
		}
		out = append(out, strings.Join(names[:count], "")...)
		if names = names[count:]; len(names) > 0 {
			out = append(out, make([]byte, blockSize-used)...)
		}
	}
	return out
}

// child is the inode that name stands for in directory n, and its kind.
func (n *node) child(name string) (*node, byte) {
	c, ok := n.children[name]
	switch {
	case !ok && name == "..":
		return n.parent, direntDir
	case !ok:
		return n, direntDir
	case c.children != nil:
		return c, direntDir
	case c.target != "":
		return c, direntSymlink
	}
	return c, direntFile
}

func (n *node) nid() uint64 { return uint64(n.offset / nidUnit) }

func (l *layout) superblock() []byte {
	block := make([]byte, blockSize)
	sb := block[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(sb[0:], superMagic)
	le.PutUint32(sb[8:], featureSBCsum)
	sb[12] = 12 // log2 of the block size
	le.PutUint64(sb[16:], uint64(len(l.nodes)))
	le.PutUint32(sb[36:], uint32(l.end))
	le.PutUint32(sb[40:], uint32(l.first)) // the root is the first inode
	// CRC-32C as the kernel computes it: without the final inversion.
	le.PutUint32(sb[4:], ^crc32.Checksum(sb, crc32.MakeTable(crc32.Castagnoli)))
	return block
}

func blocks(n int64) int64 { return (n + blockSize - 1) / blockSize }

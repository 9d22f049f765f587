// Package ext4 makes empty ext4 filesystems in sparse files, and reads how full
// one is. It writes a few blocks whatever the size, and needs no other program.
package ext4

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

const (
	// BlockSize is the unit in which files take space, in bytes.
	BlockSize = 4096

	blocksPerGroup = 8 * BlockSize
	inodeSize      = 256
	inodesPerBlock = BlockSize / inodeSize
	descSize       = 32
	descsPerBlock  = BlockSize / descSize
	// firstInode is the first that is not reserved, in a filesystem that reserves
	// no more than it must.
	firstInode = 11
	// maxReserve is how many blocks the kernel keeps back for its own trees, of at
	// most a fiftieth of the whole.
	maxReserve   = 4096
	reservePart  = 50
	superOffset  = 1024
	superSize    = 1024
	rootInode    = 2
	journalInode = 8
)

// Shape is what a filesystem is to hold.
type Shape struct {
	// SizeBytes is how much its files and directories may take, rounded up to
	// BlockSize. What the filesystem needs for itself comes on top.
	SizeBytes int64
	// Inodes is how many files and directories it takes, the root and lost+found
	// not counted: at most one for each BlockSize of SizeBytes. Where that is far
	// fewer than one for each MiB it is rounded up.
	Inodes int64
	// Journal makes it survive a loss of power.
	Journal bool
}

// Limits of a Shape. The largest leaves room for what the filesystem needs for
// itself below the 2^32 blocks that this format has.
const (
	MinSize = 1 << 20
	MaxSize = 1<<43 + 1<<20
)

// Usage is how full a filesystem is.
type Usage struct {
	// FreeBytes and FreeInodes are what can still be taken.
	FreeBytes, FreeInodes int64
}

// plan is where everything lies. Numbers are of blocks and of inodes.
type plan struct {
	shape          Shape
	blocks, groups int64
	inodesPerGroup int64
	tableBlocks    int64 // of one group
	descBlocks     int64
	journalBlocks  int64
	firstInode     int64
}

// journalFor grows with what is written at once.
func journalFor(s Shape) int64 {
	switch {
	case !s.Journal:
		return 0
	case s.SizeBytes < 128<<20:
		return 1024
	case s.SizeBytes < 2<<30:
		return 4096
	}
	return 8192
}

// lay finds the smallest filesystem that holds the shape.
func lay(s Shape) (plan, error) {
	if s.SizeBytes < MinSize || s.SizeBytes > MaxSize {
		return plan{}, fmt.Errorf("make ext4: a size of %d bytes is not between %d and %d", s.SizeBytes, MinSize, int64(MaxSize))
	}
	data := (s.SizeBytes + BlockSize - 1) / BlockSize
	if s.Inodes < 1 || s.Inodes > data {
		return plan{}, fmt.Errorf("make ext4: %d inodes in %d bytes: want 1 to %d", s.Inodes, s.SizeBytes, data)
	}
	p := plan{shape: s, journalBlocks: journalFor(s)}
	// The groups' own tables make it larger, which may make another group of it.
	for p.groups = (data + blocksPerGroup - 1) / blocksPerGroup; ; p.groups++ {
		p.inodesPerGroup = roundUp((s.Inodes+firstInode+p.groups-1)/p.groups, inodesPerBlock)
		p.tableBlocks = p.inodesPerGroup / inodesPerBlock
		p.descBlocks = (p.groups + descsPerBlock - 1) / descsPerBlock
		used := data + p.head() + p.groups*p.perGroup()
		p.blocks = used + min(used/(reservePart-1)+1, maxReserve)
		// The kernel takes no last group without room for its own tables.
		if last := p.blocks % blocksPerGroup; last != 0 && last < p.perGroup()+64 {
			p.blocks += p.perGroup() + 64 - last
		}
		if p.blocks <= p.groups*blocksPerGroup {
			p.blocks = max(p.blocks, (p.groups-1)*blocksPerGroup+p.perGroup()+64)
			break
		}
	}
	// Inodes beyond the ones asked for are reserved, which is how the kernel never
	// gives them out; lost+found takes the last that is not free.
	if first := p.groups*p.inodesPerGroup - s.Inodes; first >= firstInode && first < p.inodesPerGroup {
		p.firstInode = first
	} else {
		p.firstInode = firstInode
	}
	return p, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// head is what the first group holds beside its tables: superblock, descriptors,
// journal, and a block for each of two directories.
func (p *plan) head() int64 { return 1 + p.descBlocks + p.journalBlocks + 2 }

// free counts the blocks that nothing uses.
func (p *plan) free() (blocks int64) {
	for g := range p.groups {
		have, used := p.inGroup(g)
		blocks += have - used
	}
	return blocks
}

// perGroup is two bitmaps and the table of inodes.
func (p *plan) perGroup() int64 { return 2 + p.tableBlocks }

// bitmaps is where the tables of a group begin.
func (p *plan) bitmaps(group int64) int64 {
	if group == 0 {
		return 1 + p.descBlocks
	}
	return group * blocksPerGroup
}

// inGroup is how many blocks a group has, and how many of them are used.
func (p *plan) inGroup(group int64) (have, used int64) {
	have = min(blocksPerGroup, p.blocks-group*blocksPerGroup)
	used = p.perGroup()
	if group == 0 {
		used += p.head()
	}
	return have, used
}

// Space is what an empty filesystem of this shape has to give: a little more than
// the shape asks for, where that leaves blocks over.
func (s Shape) Space() (Usage, error) {
	p, err := lay(s)
	if err != nil {
		return Usage{}, err
	}
	reserve := min(p.blocks/reservePart, maxReserve)
	return Usage{FreeBytes: (p.free() - reserve) * BlockSize, FreeInodes: p.groups*p.inodesPerGroup - p.firstInode}, nil
}

// File is what Make writes to; *os.File is one.
type File interface {
	io.WriterAt
	Truncate(size int64) error
}

// Make writes an empty filesystem to f, which must be empty. What it does not
// write it leaves as a hole. It does not sync.
func Make(f File, s Shape) error {
	p, err := lay(s)
	if err != nil {
		return err
	}
	if err := f.Truncate(p.blocks * BlockSize); err != nil {
		return fmt.Errorf("make ext4: %w", err)
	}
	b := &builder{plan: p, now: uint32(time.Now().Unix())}
	rand.Read(b.uuid[:]) // never fails since Go 1.24
	b.uuid[6], b.uuid[8] = b.uuid[6]&0x0f|0x40, b.uuid[8]&0x3f|0x80
	for _, part := range b.parts() {
		if _, err := f.WriteAt(part.data, part.at); err != nil {
			return fmt.Errorf("make ext4: %w", err)
		}
	}
	return nil
}

// ReadUsage reads how full an unmounted filesystem is.
func ReadUsage(r io.ReaderAt) (Usage, error) {
	sb := make([]byte, superSize)
	if _, err := r.ReadAt(sb, superOffset); err != nil {
		return Usage{}, fmt.Errorf("read ext4 superblock: %w", err)
	}
	le := binary.LittleEndian
	if le.Uint16(sb[56:]) != superMagic {
		return Usage{}, fmt.Errorf("read ext4 superblock: it is missing")
	}
	blocks, free := int64(le.Uint32(sb[4:])), int64(le.Uint32(sb[12:]))
	if le.Uint32(sb[24:]) != 2 || free > blocks {
		return Usage{}, fmt.Errorf("read ext4 superblock: Cloche did not create it")
	}
	reserve := min(blocks/reservePart, maxReserve)
	return Usage{FreeBytes: max(free-reserve, 0) * BlockSize, FreeInodes: int64(le.Uint32(sb[16:]))}, nil
}

package ext4

import "encoding/binary"

// Numbers of the format, as the kernel's Documentation/filesystems/ext4 has
// them.
const (
	superMagic  = 0xEF53
	extentMagic = 0xF30A

	compatJournal   = 0x4
	compatXattr     = 0x8
	compatDirIndex  = 0x20
	compatFewSupers = 0x200 // and the list of groups with a copy is empty
	incompatType    = 0x2
	incompatExtents = 0x40
	roLargeFile     = 0x2
	roHugeFile      = 0x8
	roDescSum       = 0x10
	roManyLinks     = 0x20
	roExtraInode    = 0x40

	groupInodesUnwritten = 0x1
	groupBlocksUnwritten = 0x2
	groupTableZeroed     = 0x4

	flagExtents  = 0x80000
	modeDir      = 0o040000
	modeRegular  = 0o100000
	typeDir      = 2
	extraInode   = 32
	journalMagic = 0xC03B3998
)

// builder holds one filesystem that is being made.
type builder struct {
	plan
	uuid [16]byte
	now  uint32
}

// part is bytes at an offset of the file.
type part struct {
	at   int64
	data []byte
}

// The blocks of the first group after its tables.
func (b *builder) journalAt() int64   { return b.bitmaps(0) + b.perGroup() }
func (b *builder) rootAt() int64      { return b.journalAt() + b.journalBlocks }
func (b *builder) lostFoundAt() int64 { return b.rootAt() + 1 }

// parts is everything that is not zero. The superblock comes last, so that what
// is cut off is no filesystem.
func (b *builder) parts() []part {
	out := []part{
		{b.bitmaps(0) * BlockSize, b.blockBitmap(0)},
		{(b.bitmaps(0) + 1) * BlockSize, b.inodeBitmap()},
		{b.rootAt() * BlockSize, b.rootDir()},
		{b.lostFoundAt() * BlockSize, dirBlock(entry{uint32(b.firstInode), "."}, entry{rootInode, ".."})},
		{b.inodeAt(rootInode), b.inode(modeDir|0o755, 3, b.rootAt(), 1)},
		{b.inodeAt(b.firstInode), b.inode(modeDir|0o700, 2, b.lostFoundAt(), 1)},
	}
	if last := b.groups - 1; last > 0 {
		out = append(out, part{b.bitmaps(last) * BlockSize, b.blockBitmap(last)})
	}
	if b.journalBlocks > 0 {
		out = append(out,
			part{b.inodeAt(journalInode), b.inode(modeRegular|0o600, 1, b.journalAt(), b.journalBlocks)},
			part{b.journalAt() * BlockSize, b.journal()})
	}
	return append(out, part{BlockSize, b.descriptors()}, part{superOffset, b.super()})
}

// inodeAt is where an inode of the first group lies in the file.
func (b *builder) inodeAt(n int64) int64 {
	return (b.bitmaps(0)+2)*BlockSize + (n-1)*inodeSize
}

func (b *builder) super() []byte {
	sb, le := make([]byte, superSize), binary.LittleEndian
	put32 := func(at int, v int64) { le.PutUint32(sb[at:], uint32(v)) }
	put16 := func(at int, v uint16) { le.PutUint16(sb[at:], v) }
	put32(0, b.groups*b.inodesPerGroup)
	put32(4, b.blocks)
	put32(12, b.free())
	put32(16, b.groups*b.inodesPerGroup-b.firstInode)
	put32(24, 2) // a block is 1024 << 2
	put32(28, 2)
	put32(32, blocksPerGroup)
	put32(36, blocksPerGroup)
	put32(40, b.inodesPerGroup)
	put32(48, int64(b.now))
	put16(54, 0xFFFF) // no count of mounts asks for a check
	put16(56, superMagic)
	put16(58, 1) // clean
	put16(60, 2) // an error makes it read-only
	put32(64, int64(b.now))
	put32(76, 1) // with features
	put32(84, b.firstInode)
	put16(88, inodeSize)
	compat := int64(compatXattr | compatDirIndex | compatFewSupers)
	if b.journalBlocks > 0 {
		compat |= compatJournal
		put32(224, journalInode)
		// A copy of where the journal lies, for the repair of its inode.
		sb[253] = 1
		copy(sb[268:], extents(b.journalAt(), b.journalBlocks))
		put32(268+16*4, b.journalBlocks*BlockSize)
	}
	put32(92, compat)
	put32(96, incompatType|incompatExtents)
	put32(100, roLargeFile|roHugeFile|roDescSum|roManyLinks|roExtraInode)
	copy(sb[104:], b.uuid[:])
	copy(sb[236:], b.uuid[:]) // any bytes are a seed for the hashes of names
	sb[252] = 1               // half MD4
	put32(264, int64(b.now))
	put16(348, extraInode)
	put16(350, extraInode)
	put32(352, 1) // hashes of signed characters
	return sb
}

// descriptors is one record for each group, with a checksum that lets the kernel
// believe what is said of blocks that were never written.
func (b *builder) descriptors() []byte {
	out, le := make([]byte, b.descBlocks*BlockSize), binary.LittleEndian
	for g := range b.groups {
		d := out[g*descSize : (g+1)*descSize]
		have, used := b.inGroup(g)
		flags, freeInodes, dirs := uint16(groupTableZeroed|groupInodesUnwritten), b.inodesPerGroup, uint16(0)
		switch {
		case g == 0:
			flags, freeInodes, dirs = groupTableZeroed, b.inodesPerGroup-b.firstInode, 2
		case g < b.groups-1:
			flags |= groupBlocksUnwritten
		}
		le.PutUint32(d[0:], uint32(b.bitmaps(g)))
		le.PutUint32(d[4:], uint32(b.bitmaps(g)+1))
		le.PutUint32(d[8:], uint32(b.bitmaps(g)+2))
		le.PutUint16(d[12:], uint16(have-used))
		le.PutUint16(d[14:], uint16(freeInodes))
		le.PutUint16(d[16:], dirs)
		le.PutUint16(d[18:], flags)
		le.PutUint16(d[28:], uint16(freeInodes)) // never used, at the end of the table
		sum := crc16(0xFFFF, b.uuid[:])
		sum = crc16(sum, le.AppendUint32(nil, uint32(g)))
		le.PutUint16(d[30:], crc16(sum, d[:30]))
	}
	return out
}

// crc16 is the kernel's, of the polynomial 0x8005, reflected.
func crc16(sum uint16, data []byte) uint16 {
	for _, c := range data {
		sum ^= uint16(c)
		for range 8 {
			if sum&1 != 0 {
				sum = sum>>1 ^ 0xA001
			} else {
				sum >>= 1
			}
		}
	}
	return sum
}

// blockBitmap of a group: what is used is at its beginning, and blocks beyond its
// end count as used.
func (b *builder) blockBitmap(group int64) []byte {
	have, used := b.inGroup(group)
	return bitmap(used, have)
}

func (b *builder) inodeBitmap() []byte { return bitmap(b.firstInode, b.inodesPerGroup) }

// bitmap sets the bits below used and those from have on.
func bitmap(used, have int64) []byte {
	out := make([]byte, BlockSize)
	set := func(i int64) { out[i/8] |= 1 << (i % 8) }
	for i := range used {
		set(i)
	}
	for i := have; i < 8*BlockSize; i++ {
		set(i)
	}
	return out
}

// entry is one name of a directory.
type entry struct {
	inode uint32
	name  string
}

func (b *builder) rootDir() []byte {
	return dirBlock(entry{rootInode, "."}, entry{rootInode, ".."}, entry{uint32(b.firstInode), "lost+found"})
}

// dirBlock is a directory of directories; the last entry reaches to the end.
func dirBlock(entries ...entry) []byte {
	out, le := make([]byte, BlockSize), binary.LittleEndian
	at := 0
	for i, e := range entries {
		size := 8 + (len(e.name)+3)/4*4
		if i == len(entries)-1 {
			size = BlockSize - at
		}
		le.PutUint32(out[at:], e.inode)
		le.PutUint16(out[at+4:], uint16(size))
		out[at+6], out[at+7] = byte(len(e.name)), typeDir
		copy(out[at+8:], e.name)
		at += size
	}
	return out
}

// inode is a file or directory in one run of blocks.
func (b *builder) inode(mode uint16, links uint16, at, blocks int64) []byte {
	out, le := make([]byte, inodeSize), binary.LittleEndian
	le.PutUint16(out[0:], mode)
	le.PutUint32(out[4:], uint32(blocks*BlockSize))
	for _, stamp := range []int{8, 12, 16, 144} {
		le.PutUint32(out[stamp:], b.now)
	}
	le.PutUint16(out[26:], links)
	le.PutUint32(out[28:], uint32(blocks*BlockSize/512))
	le.PutUint32(out[32:], flagExtents)
	copy(out[40:], extents(at, blocks))
	le.PutUint16(out[128:], extraInode)
	return out
}

// extents is the tree of one run.
func extents(at, blocks int64) []byte {
	out, le := make([]byte, 60), binary.LittleEndian
	le.PutUint16(out[0:], extentMagic)
	le.PutUint16(out[2:], 1) // entries
	le.PutUint16(out[4:], 4) // room
	le.PutUint16(out[16:], uint16(blocks))
	le.PutUint32(out[20:], uint32(at))
	return out
}

// journal is the first block of an empty one.
func (b *builder) journal() []byte {
	out, be := make([]byte, superSize), binary.BigEndian
	be.PutUint32(out[0:], journalMagic)
	be.PutUint32(out[4:], 4) // a superblock, version 2
	be.PutUint32(out[12:], BlockSize)
	be.PutUint32(out[16:], uint32(b.journalBlocks))
	be.PutUint32(out[20:], 1) // the first block of the log
	be.PutUint32(out[24:], 1) // the first sequence
	copy(out[48:], b.uuid[:])
	be.PutUint32(out[64:], 1) // users
	return out
}

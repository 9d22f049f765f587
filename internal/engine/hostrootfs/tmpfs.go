package hostrootfs

import (
	"math"
	"strconv"
)

// NoDiskLimit is the size of a writable layer without a limit: what is written is
// memory, which has a limit of its own.
const NoDiskLimit = math.MaxInt64 / 2

// TmpfsOptions are those of a memory filesystem, each a key, an equals sign and a value.
func TmpfsOptions(size int64, mode uint32) []string {
	// Every file takes a page at least, or nothing of the size.
	files := min(max(size/4096, 64), 1<<20)
	return []string{
		"size=" + strconv.FormatInt(size, 10), "mode=" + strconv.FormatUint(uint64(mode), 8), "nr_inodes=" + strconv.FormatInt(files, 10),
	}
}

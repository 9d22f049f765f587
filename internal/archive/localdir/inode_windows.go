package localdir

import "io/fs"

// inodeOf finds no files with several names here.
func inodeOf(fs.FileInfo) (id [2]uint64, ok bool) { return id, false }

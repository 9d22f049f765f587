//go:build linux

package fsop

import (
	"cmp"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// maxLarge bounds what an answer names: the largest.
	maxLarge = 64
	// maxLooked and maxLooking bound the walk for it.
	maxLooked  = 500_000
	maxLooking = 10 * time.Second
)

// large finds the files of at least that size on the filesystem that top lies on.
// What cannot be looked at is left out.
func large(top string, least int64) wire.Large {
	var found wire.Large
	var st syscall.Stat_t
	if err := syscall.Lstat(top, &st); err != nil {
		return found
	}
	dev, end, looked := st.Dev, time.Now().Add(maxLooking), 0
	_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if looked++; looked > maxLooked || time.Now().After(end) {
			found.Partial = true
			return fs.SkipAll
		}
		if err != nil {
			return nil // it is left out
		}
		switch {
		case d.IsDir():
			// Only a directory has the filesystem's own number: a file below the
			// overlay has the number of its layer.
			if err := syscall.Lstat(p, &st); err != nil || st.Dev != dev {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			if err := syscall.Lstat(p, &st); err == nil && st.Size >= least {
				found.Files = append(found.Files, wire.LargeFile{Path: api.Bytes(p), Size: st.Size})
			}
		}
		if len(found.Files) > 2*maxLarge {
			found.Files = largest(found.Files)
		}
		return nil
	})
	found.Files = largest(found.Files)
	return found
}

func largest(files []wire.LargeFile) []wire.LargeFile {
	slices.SortFunc(files, func(a, b wire.LargeFile) int { return cmp.Compare(b.Size, a.Size) })
	return files[:min(len(files), maxLarge)]
}

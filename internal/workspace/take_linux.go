//go:build !remoteonly

package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Space is what a filesystem has left.
type Space struct {
	FreeBytes, FreeInodes int64
	// TotalBytes is its size.
	TotalBytes int64
}

// SpaceAt asks the filesystem that path is on. It takes some microseconds.
func SpaceAt(path string) (Space, error) {
	var fs unix.Statfs_t
	for {
		err := unix.Statfs(path, &fs)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Space{}, fmt.Errorf("stat filesystem of %s: %w", path, err)
		}
		return Space{FreeBytes: int64(fs.Bfree) * fs.Bsize, FreeInodes: int64(fs.Ffree), TotalBytes: int64(fs.Blocks) * fs.Bsize}, nil
	}
}

// Taken is what a private workspace takes of its disk.
type Taken struct {
	Bounds
	// Partial: a part of it could not be looked at, so it may be more.
	Partial bool
}

// Take counts what the files in the directories take, holes left out, and what of the
// same disk the processes hold that has no name any more. It returns api.CodeQuota,
// without a phase, as soon as that is more than the limit. It follows no symlink and blocks
// no other process. A file that is removed meanwhile is not counted.
func Take(ctx context.Context, limit Bounds, dirs []*Dir, pids []int) (Taken, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	m := &measurement{ctx: ctx, limit: limit, seen: map[inodeKey]struct{}{}, taken: true}
	for _, d := range dirs {
		top, err := d.reader()
		if errors.Is(err, unix.EACCES) {
			m.partial = true
			continue
		}
		if err == nil {
			err = errors.Join(m.dir(top, 1), top.Close())
		}
		if err != nil {
			return Taken{m.used, true}, err
		}
	}
	for _, pid := range pids {
		for _, table := range []string{"fd", "map_files"} {
			if err := m.unnamed("/proc/"+strconv.Itoa(pid)+"/"+table, dirs); err != nil {
				return Taken{m.used, true}, err
			}
		}
	}
	return Taken{m.used, m.partial}, nil
}

// unnamed counts the files of a process that have no name in a directory any more. A
// process that has ended, or that may not be looked into, has none.
func (m *measurement) unnamed(table string, dirs []*Dir) error {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	err = eachName(m.ctx, f, func(name string) error {
		var st unix.Stat_t
		if unix.Fstatat(int(f.Fd()), name, &st, 0) != nil || st.Nlink > 0 || !isFile(&st) {
			return nil
		}
		for _, d := range dirs {
			if d.stat.Dev == st.Dev {
				return m.addOnce(&st)
			}
		}
		return nil
	})
	if errors.Is(err, unix.ESRCH) || vanished(err) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// addOnce counts a file that several descriptors may lead to.
func (m *measurement) addOnce(st *unix.Stat_t) error {
	key := inodeKey{st.Dev, st.Ino}
	if _, again := m.seen[key]; again {
		return nil
	}
	m.seen[key] = struct{}{}
	return m.add(st)
}

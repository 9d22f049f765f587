//go:build linux

package fsop

import (
	"bufio"
	"encoding/json"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/archive/pack"
	"github.com/cloche-dev/cloche/internal/dirent"
)

// lister sends the entries of one filesystem.
type lister struct {
	out     *bufio.Writer
	dev     uint64
	entries int
}

// tree lists the filesystem that the directory name lies on, from there down. Of what is mounted
// below it only the mount points are listed.
func tree(p *session.Call, name string) error {
	dir, err := pathwalk.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return pathwalk.FileError("list", name, err)
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := pathwalk.Fstat(dir, &st); err != nil {
		return pathwalk.FileError("list", name, err)
	}
	l := &lister{out: bufio.NewWriterSize(frameWriter{p}, wire.MaxData), dev: st.Dev}
	err = pathwalk.WithFD(dir, func(fd int) error { return l.directory(fd, "", 0) })
	if err == nil {
		err = l.out.Flush()
	}
	if err != nil {
		return pathwalk.FileError("list", name, err)
	}
	return p.End()
}

// directory lists what is in an open directory. What disappears meanwhile is left out.
func (l *lister) directory(d int, prefix string, depth int) error {
	if depth > pack.MaxDepth {
		return api.Errorf(api.CodeTooLarge, "%.500q is nested deeper than %d directories", prefix, pack.MaxDepth)
	}
	buf := make([]byte, dirent.Bytes)
	for {
		list, err := dirent.Read(d, buf)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, e := range list {
			if err := l.entry(d, e.Name, prefix+e.Name, depth); err != nil {
				return err
			}
		}
	}
}

func (l *lister) entry(dir int, base, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	// Only a directory has the number of the filesystem: a file of an overlay can have the number of a layer.
	mount := isDir && st.Dev != l.dev
	if l.entries++; l.entries > pack.MaxEntries {
		return api.Errorf(api.CodeTooLarge, "there are more than %d files, which is the most that a list may hold", pack.MaxEntries)
	}
	line, err := json.Marshal(wire.TreeEntry{
		Path: api.Bytes(name), Mode: st.Mode, UID: st.Uid, GID: st.Gid, Ino: st.Ino, Dev: st.Dev, Size: st.Size,
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Mount: mount,
	})
	if err != nil {
		return err
	}
	if _, err := l.out.Write(append(line, '\n')); err != nil || !isDir || mount {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	return l.directory(fd, name+"/", depth+1)
}

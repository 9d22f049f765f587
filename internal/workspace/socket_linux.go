//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/idmap"
)

// Bounds of the search for sockets of the host in a directory, hidden ones included.
const (
	socketLevels  = 8
	socketDirs    = 2048
	socketEntries = 32768
)

// Sockets lists at most so many sockets with listeners in what is staged, by their paths in it. A socket
// without a listener never gets one again, because a socket is bound at a new name. So it is left to the
// sandbox, which may have made it.
func (s *Staged) Sockets(most int) ([]string, error) {
	root, err := os.OpenRoot(s.Path)
	if err != nil {
		return nil, fmt.Errorf("look for sockets: %w", err)
	}
	defer root.Close()
	probe := -1
	defer func() { _ = unix.Close(probe) }()
	var found []string
	search := Search{Levels: socketLevels, Dirs: socketDirs, Entries: socketEntries}
	search.Run(root, func(dir string, entries []fs.DirEntry) {
		for _, e := range entries {
			if e.Type() != fs.ModeSocket || len(found) >= most {
				continue
			}
			if probe < 0 {
				if probe, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
					return
				}
			}
			if name := path.Join(dir, e.Name()); listens(probe, root, name) {
				found = append(found, name)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for sockets: %w", err)
	}
	return found, nil
}

// listens reports whether a socket may have a listener. The kernel looks for the listener before it
// compares the kinds, and a connect of a datagram socket notifies no process: so no service notices.
func listens(probe int, root *os.Root, name string) bool {
	f, err := root.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	err = unix.Connect(probe, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))})
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// Closer finds out which filesystems map owners. The zero Closer is ready; it is safe for
// concurrent use, and holds one user namespace from its first use on.
type Closer struct {
	once sync.Once
	ns   *os.File
	err  error
}

// can reports whether the mount of a directory can be closed, by a copy of it.
func (c *Closer) can(d *Dir) (bool, error) {
	c.once.Do(func() {
		c.ns, c.err = idmap.Mapping{UIDs: []syscall.SysProcIDMap{{HostID: 1, Size: 1}}, GIDs: idmap.NoGroups()}.Namespace()
	})
	if c.err != nil {
		return false, c.err
	}
	tree, err := unix.OpenTree(int(d.file.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return false, os.NewSyscallError("open_tree", err)
	}
	defer func() { _ = unix.Close(tree) }()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(c.ns.Fd())})
	return err == nil, nil
}

//go:build linux

package pathwalk

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// DirWalk opens directories below a top, one name after the other, and follows
// no symlink on the way, so that a change of the tree meanwhile cannot lead it elsewhere. It
// keeps the way to the directory that it opened last, because most steps are
// into the same one. It is for one goroutine.
type DirWalk struct {
	Top   *os.File
	names []string
	fds   []int
	// mkdir makes a directory that is missing; nil is an error of it.
	Mkdir func(at int, name string) error
}

// Enter returns a descriptor of the directory dir, which is relative and clean.
// It is valid until the next call.
func (w *DirWalk) Enter(dir string) (int, error) {
	var parts []string
	if dir != "." && dir != "" {
		parts = strings.Split(dir, "/")
	}
	n := 0
	for n < len(parts) && n < len(w.names) && parts[n] == w.names[n] {
		n++
	}
	w.Leave(n)
	for _, name := range parts[n:] {
		fd, err := w.step(w.here(), name)
		if err != nil {
			return -1, err
		}
		w.names, w.fds = append(w.names, name), append(w.fds, fd)
	}
	return w.here(), nil
}

func (w *DirWalk) here() int {
	if n := len(w.fds); n > 0 {
		return w.fds[n-1]
	}
	return int(w.Top.Fd())
}

// Leave closes all but the first n directories of the way.
func (w *DirWalk) Leave(n int) {
	for _, fd := range w.fds[n:] {
		unix.Close(fd)
	}
	w.names, w.fds = w.names[:n], w.fds[:n]
}

// Close gives back what the walk has open; top is the caller's.
func (w *DirWalk) Close() { w.Leave(0) }

func (w *DirWalk) step(at int, name string) (int, error) {
	fd, err := OpenDirAt(at, name)
	if errors.Is(err, unix.ENOENT) && w.Mkdir != nil {
		if err := w.Mkdir(at, name); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		fd, err = OpenDirAt(at, name)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, errInTheWay(name)
	}
	return fd, err
}

// OpenDirAt opens a directory as a place only.
func OpenDirAt(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func errInTheWay(name string) *api.Error {
	return api.Invalid("body", "%.200q is on the way of an entry of the tar and is no directory", name).
		WithHint("nothing is unpacked through a symlink; remove it, or unpack into the directory that it leads to")
}

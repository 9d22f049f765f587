//go:build linux

package guest

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// dirWalk opens directories below a top, one name after the other, and follows
// no symlink on the way: whoever changes the tree meanwhile leads it nowhere. It
// keeps the way to the directory that it opened last, because most steps are
// into the same one. It is for one goroutine.
type dirWalk struct {
	top   *os.File
	names []string
	fds   []int
	// mkdir makes a directory that is missing; nil is an error of it.
	mkdir func(at int, name string) error
}

// enter returns a descriptor of the directory dir, which is relative and clean.
// It is valid until the next call.
func (w *dirWalk) enter(dir string) (int, error) {
	var parts []string
	if dir != "." && dir != "" {
		parts = strings.Split(dir, "/")
	}
	n := 0
	for n < len(parts) && n < len(w.names) && parts[n] == w.names[n] {
		n++
	}
	w.leave(n)
	for _, name := range parts[n:] {
		fd, err := w.step(w.here(), name)
		if err != nil {
			return -1, err
		}
		w.names, w.fds = append(w.names, name), append(w.fds, fd)
	}
	return w.here(), nil
}

func (w *dirWalk) here() int {
	if n := len(w.fds); n > 0 {
		return w.fds[n-1]
	}
	return int(w.top.Fd())
}

// leave closes all but the first n directories of the way.
func (w *dirWalk) leave(n int) {
	for _, fd := range w.fds[n:] {
		unix.Close(fd)
	}
	w.names, w.fds = w.names[:n], w.fds[:n]
}

// close gives back what the walk has open; top is the caller's.
func (w *dirWalk) close() { w.leave(0) }

func (w *dirWalk) step(at int, name string) (int, error) {
	fd, err := openDirAt(at, name)
	if errors.Is(err, unix.ENOENT) && w.mkdir != nil {
		if err := w.mkdir(at, name); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		fd, err = openDirAt(at, name)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, errInTheWay(name)
	}
	return fd, err
}

// openDirAt opens a directory as a place only.
func openDirAt(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func errInTheWay(name string) *api.Error {
	return api.Invalid("body", "%.200q is on the way of an entry of the tar and is no directory", name).
		WithHint("nothing is unpacked through a symlink; remove it, or unpack into the directory that it leads to")
}

// pathSet is a set of directories or files, each with all below it.
type pathSet []string

func newPathSet(paths []api.Bytes) pathSet {
	var s pathSet
	for _, p := range paths {
		s = append(s, string(p))
	}
	slices.Sort(s)
	return slices.Compact(s)
}

// holds says whether p is in the set.
func (s pathSet) holds(p string) bool {
	if len(s) == 0 {
		return false
	}
	for {
		if _, ok := slices.BinarySearch(s, p); ok {
			return true
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return false
		}
		p = p[:i]
	}
}

// under says whether something in the set lies below p.
func (s pathSet) under(p string) bool {
	i, _ := slices.BinarySearch(s, p+"/")
	return i < len(s) && strings.HasPrefix(s[i], p+"/")
}

//go:build linux

// Package filewatch reports changes of files in a directory and below it, by inotify. The agent
// watches inside of a sandbox with it, and the daemon watches directories of the host.
//
// The tree may belong to hostile code. Directories are opened by descriptor, one name at a time,
// without following symlinks, and all that is kept of a tree is bounded.
package filewatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// ErrLimit is in errors of a machine or a tree that has too much to watch.
var ErrLimit = errors.New("too much to watch")

const (
	// DefaultMaxDirs bounds the directories of one watch.
	DefaultMaxDirs = 8192
	// maxQueued bounds the changes that wait for the caller.
	maxQueued = 4096
	// maxSeen bounds the names that a scan reported before the kernel did.
	maxSeen = 1 << 16
	// readBuffer is how much is read of an inotify descriptor at once, in bytes.
	readBuffer = 64 << 10
)

// Options configure a watch.
type Options struct {
	// Recursive includes the directories below.
	Recursive bool
	// Open opens a directory in an open directory for reading, and follows no symlink; nil asks the
	// kernel.
	Open func(dir int, name string) (int, error)
	// Hide reports whether a file is not reported, by the last part of its path. A hidden file that is
	// renamed to a name that is not hidden is reported as created and written; nil hides none.
	Hide func(base string) bool
	// MaxDirs bounds the directories; 0 is DefaultMaxDirs.
	MaxDirs int
}

// Change is one change. Name is relative to the watched directory, and empty for itself.
type Change struct {
	Kind api.FileChangeKind
	Name string
}

const events = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// Run calls fn with a change of kind api.FileReady and then with the changes in an open directory. It
// returns nil when the directory is removed, and otherwise an error: of fn, or the end of ctx.
func Run(ctx context.Context, root *os.File, o Options, fn func(Change) error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return limited("watch files", err)
	}
	w := &watcher{o: o, file: os.NewFile(uintptr(fd), "inotify"), root: root, dirs: map[int32]string{}, seen: map[string]struct{}{}, more: make(chan struct{}, 1)}
	if w.o.Open == nil {
		w.o.Open = openDir
	}
	if w.o.MaxDirs == 0 {
		w.o.MaxDirs = DefaultMaxDirs
	}
	defer w.file.Close()
	if err := w.addTree("", false); err != nil {
		return err
	}
	if err := fn(Change{Kind: api.FileReady}); err != nil {
		return err
	}
	var end error // of the reader
	ended := make(chan struct{})
	go func() { defer close(ended); end = w.read() }()
	stop := context.AfterFunc(ctx, func() { _ = w.file.Close() })
	defer func() {
		stop()
		_ = w.file.Close()
		<-ended
	}()
	for over := false; ; {
		select {
		case <-w.more:
		case <-ended:
			over = true
		}
		for _, c := range w.take() {
			if err := fn(c); err != nil {
				return err
			}
		}
		switch {
		case !over:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(end, errGone):
			return nil
		default:
			return end
		}
	}
}

// errGone is the end of the watched directory.
var errGone = errors.New("the watched directory is gone")

// watcher is one watch. Its reader owns all fields but the queue.
type watcher struct {
	o    Options
	file *os.File // of inotify; the end of the context closes it
	root *os.File
	dirs map[int32]string // by watch descriptor: the path relative to root
	// The watch descriptors of root and of the directory above it.
	self, parent int32
	// seen are names that a scan reported: the kernel may report their creation too.
	seen map[string]struct{}
	// moved is the old name of a move whose new name has not come yet.
	moved *move

	mu       sync.Mutex
	queue    []Change
	overflow bool
	more     chan struct{}
}

// move is the first half of a rename.
type move struct {
	cookie      uint32
	name        string
	dir, hidden bool
}

// take returns the changes that wait.
func (w *watcher) take() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.queue
	if w.overflow {
		all = append(all, Change{Kind: api.FileOverflow})
	}
	w.queue, w.overflow = nil, false
	return all
}

// put queues a change, unless it is the write that was queued last.
func (w *watcher) put(kind api.FileChangeKind, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := Change{kind, name}
	switch n := len(w.queue); {
	case kind == api.FileOverflow || n >= maxQueued:
		w.overflow = true
	case kind == api.FileWrite && n > 0 && w.queue[n-1] == c:
		return
	default:
		w.queue = append(w.queue, c)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) hidden(base string) bool { return w.o.Hide != nil && w.o.Hide(base) }

// addTree watches a directory, and those below it in a recursive watch. With tell it reports what is in
// them: files that came before the kernel watched.
func (w *watcher) addTree(name string, tell bool) error {
	todo := []string{name}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		names, err := w.add(at, tell || w.o.Recursive)
		switch {
		case err == nil:
		case at != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
			continue // it is gone, no directory, or not for this user
		default:
			return err
		}
		for _, entry := range names {
			if w.hidden(entry.Name()) {
				continue
			}
			below := path.Join(at, entry.Name())
			if tell {
				w.put(api.FileCreate, below)
				if len(w.seen) >= maxSeen {
					clear(w.seen)
				}
				w.seen[below] = struct{}{}
			}
			if entry.IsDir() && w.o.Recursive {
				todo = append(todo, below)
			}
		}
	}
	return nil
}

// add watches one directory and then reads its names, if they are wanted.
func (w *watcher) add(name string, list bool) ([]os.DirEntry, error) {
	if len(w.dirs) >= w.o.MaxDirs {
		return nil, fmt.Errorf("%w: more than %d directories", ErrLimit, w.o.MaxDirs)
	}
	fd, err := Open(int(w.root.Fd()), name, w.o.Open)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	wd, err := w.watch("/proc/self/fd/"+strconv.Itoa(fd), events)
	if err != nil {
		return nil, limited("watch a directory", err)
	}
	w.dirs[wd] = name
	if name == "" {
		w.self = wd
		w.watchParent(fd)
	}
	if !list {
		return nil, nil
	}
	entries, err := dir.ReadDir(-1)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return entries, err
}

// watchParent watches for the removal of root in the directory above it. Root itself has no event for
// that, because its descriptor is open.
func (w *watcher) watchParent(root int) {
	if wd, err := w.watch("/proc/self/fd/"+strconv.Itoa(root)+"/..", unix.IN_DELETE|unix.IN_ONLYDIR|unix.IN_MASK_ADD); err == nil {
		w.parent = wd
	}
}

// watch adds a watch. It holds the descriptor of inotify, whose number may belong to another file once
// the context has ended.
func (w *watcher) watch(path string, mask uint32) (wd int32, err error) {
	held := w.hold(func(fd int) {
		var n int
		n, err = unix.InotifyAddWatch(fd, path, mask)
		wd = int32(n)
	})
	return wd, errors.Join(held, err)
}

// hold calls f with the descriptor of inotify, unless it is closed.
func (w *watcher) hold(f func(fd int)) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// gone reports whether root has been removed.
func (w *watcher) gone() bool {
	var st unix.Stat_t
	return unix.Fstat(int(w.root.Fd()), &st) == nil && st.Nlink == 0
}

// limited marks an error of the kernel's limits.
func limited(what string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: the user has no inotify watch left", ErrLimit)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: the user has no inotify instance left", ErrLimit)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Open opens a directory below an open one by its relative path, one name at a time; open is Options.Open,
// or nil. The caller closes the descriptor.
func Open(root int, name string, open func(dir int, name string) (int, error)) (int, error) {
	if open == nil {
		open = openDir
	}
	at, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	if name == "" {
		// A descriptor of its own: reading a directory moves its offset.
		fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		return fd, err
	}
	for part := range strings.SplitSeq(name, "/") {
		fd, err := open(at, part)
		_ = unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

func openDir(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// read reads events until the descriptor is closed or the directory is gone.
func (w *watcher) read() error {
	buf := make([]byte, readBuffer)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return fmt.Errorf("read changes: %w", err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			cookie, size := binary.NativeEndian.Uint32(b[8:]), int(binary.NativeEndian.Uint32(b[12:]))
			b = b[unix.SizeofInotifyEvent:]
			if size > len(b) {
				return errors.New("read changes: an event is cut off")
			}
			base := strings.TrimRight(string(b[:size]), "\x00")
			b = b[size:]
			if err := w.event(wd, mask, cookie, base); err != nil {
				return err
			}
		}
	}
}

// event handles one event of the kernel.
func (w *watcher) event(wd int32, mask, cookie uint32, base string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.put(api.FileOverflow, "")
		return nil
	}
	if m := w.moved; m != nil && (mask&unix.IN_MOVED_TO == 0 || cookie != m.cookie) {
		w.moved = nil
		if m.dir {
			w.forget(m.name) // it was moved out of the tree
		}
	}
	dir, known := w.dirs[wd]
	switch {
	case wd == w.parent && mask&unix.IN_DELETE != 0 && w.gone():
		return errGone
	case !known:
		return nil
	case mask&(unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0 && wd == w.self:
		return errGone
	case mask&unix.IN_IGNORED != 0:
		delete(w.dirs, wd)
		if wd == w.self {
			return errGone
		}
		return nil
	case base == "":
		if wd == w.self {
			w.own(mask)
		}
		return nil
	}
	return w.entry(path.Join(dir, base), base, mask, cookie)
}

// own reports a change of the watched directory itself.
func (w *watcher) own(mask uint32) {
	switch {
	case mask&unix.IN_ATTRIB != 0:
		w.put(api.FileChmod, "")
	case mask&unix.IN_MOVE_SELF != 0:
		w.put(api.FileRename, "")
	}
}

// entry handles a change of a name in a watched directory.
func (w *watcher) entry(name, base string, mask, cookie uint32) error {
	isDir, hidden := mask&unix.IN_ISDIR != 0, w.hidden(base)
	if mask&(unix.IN_MOVED_FROM|unix.IN_DELETE) != 0 {
		delete(w.seen, name)
	}
	if mask&unix.IN_MOVED_FROM != 0 {
		w.moved = &move{cookie, name, isDir && w.o.Recursive, hidden}
	}
	if hidden {
		return nil
	}
	switch {
	case mask&unix.IN_CREATE != 0:
		if _, told := w.seen[name]; told {
			delete(w.seen, name)
			return nil
		}
		w.put(api.FileCreate, name)
		return w.appeared(name, isDir)
	case mask&unix.IN_MOVED_TO != 0:
		from := w.moved
		w.moved = nil
		w.put(api.FileCreate, name)
		switch {
		case from == nil || from.hidden && isDir:
			return w.appeared(name, isDir)
		case from.hidden:
			w.put(api.FileWrite, name)
		case from.dir:
			w.rename(from.name, name)
		}
	case mask&unix.IN_MOVED_FROM != 0:
		w.put(api.FileRename, name)
	case mask&unix.IN_DELETE != 0:
		w.put(api.FileRemove, name)
	case mask&unix.IN_MODIFY != 0:
		w.put(api.FileWrite, name)
	case mask&unix.IN_ATTRIB != 0:
		w.put(api.FileChmod, name)
	}
	return nil
}

// appeared watches a new directory of a recursive watch. Where that cannot be done, changes are lost.
func (w *watcher) appeared(name string, isDir bool) error {
	if !isDir || !w.o.Recursive {
		return nil
	}
	if err := w.addTree(name, true); err != nil {
		w.put(api.FileOverflow, "")
	}
	return nil
}

// rename gives the directories below a moved one their new paths.
func (w *watcher) rename(from, to string) {
	w.unsee(from)
	for wd, name := range w.dirs {
		if below, ok := within(name, from); ok {
			w.dirs[wd] = path.Join(to, below)
		}
	}
}

// forget ends the watch of a directory and of those below it.
func (w *watcher) forget(dir string) {
	w.unsee(dir)
	for wd, name := range w.dirs {
		if _, ok := within(name, dir); ok {
			_ = w.hold(func(fd int) { _, _ = unix.InotifyRmWatch(fd, uint32(wd)) })
			delete(w.dirs, wd)
		}
	}
}

// unsee forgets the names below a directory that a scan reported.
func (w *watcher) unsee(dir string) {
	for name := range w.seen {
		if _, ok := within(name, dir); ok {
			delete(w.seen, name)
		}
	}
}

// within returns the path of name below dir.
func within(name, dir string) (string, bool) {
	below, ok := strings.CutPrefix(name, dir)
	return strings.TrimPrefix(below, "/"), ok && (below == "" || below[0] == '/')
}

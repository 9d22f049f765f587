//go:build linux

package guest

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxReachLinks is the kernel's own bound of the links in one path.
	maxReachLinks = 40
	// maxReachDeep bounds the directories that are open for one path.
	maxReachDeep = 512
	// maxReachSteps bounds the names of one path, those of its links among them.
	maxReachSteps = 16 << 10
)

// errLedOut is of a path that leads out of all directories that were named.
var errLedOut = errors.New("the path leads out of where it may")

// fileID tells one file from another as long as it is open.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} } //nolint:unconvert // its type differs between architectures

// step is one directory on the way that a path leads.
type step struct {
	name string
	fd   int
	id   fileID
}

// walk follows a path one name after the other, as the kernel would, over links too, and
// keeps every directory that it is in open: so it is known where the path has come to,
// whoever changes the tree meanwhile. Nothing of /proc's links is followed.
type walk struct {
	dirs         []step // the top first
	todo         []string
	links, steps int
}

// spot is where a path leads: a name in a directory that is open.
type spot struct {
	dirs []step
	// missing are the directories between that are not there.
	missing []string
	// name is empty for the top itself.
	name string
	// st is what is there, when there is true.
	st    unix.Stat_t
	there bool
	// bound is the deepest of the directories that were named which holds it; nil where
	// none were.
	bound *bound
}

// bound is a directory that a path does not leave.
type bound struct {
	// names lead to it from the top, over no link.
	names []string
	// held is the deepest directory on that way that is there, depth how many names that is.
	held  int
	depth int
	id    fileID
	// fixed: nothing in it is changed.
	fixed bool
}

// findBound finds the directory name, which need not be there yet.
func findBound(name string, fixed bool) (bound, error) {
	s, err := follow(name, true)
	if err != nil {
		return bound{}, err
	}
	defer s.close()
	b := bound{fixed: fixed, depth: len(s.dirs) - 1, id: s.dirs[len(s.dirs)-1].id}
	at, open := s.dir(), "."
	switch {
	case s.there && s.st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return bound{}, unix.ENOTDIR
	case s.there && s.name != "":
		b.depth, b.id, open = b.depth+1, idOf(&s.st), s.name
	}
	b.names = s.names()
	if b.held, err = openDirAt(at, open); err != nil {
		return bound{}, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(b.held, &st); err == nil && idOf(&st) != b.id {
		err = unix.ENOENT // it was there
	}
	if err == nil && isKernels(b.held) {
		err = unix.EACCES
	}
	if err != nil {
		b.close()
		return bound{}, err
	}
	return b, nil
}

func (b *bound) close() { unix.Close(b.held) }

// holds says whether a way leads through b. What is not there of it is extra.
func (b *bound) holds(dirs []step, extra []string) bool {
	if len(dirs)-1+len(extra) < len(b.names) || len(dirs) <= b.depth || dirs[b.depth].id != b.id {
		return false
	}
	for i, want := range b.names {
		if name := nameAt(dirs, extra, i); name != want {
			return false
		}
	}
	return true
}

func nameAt(dirs []step, extra []string, i int) string {
	if i < len(dirs)-1 {
		return dirs[i+1].name
	}
	return extra[i-len(dirs)+1]
}

// bounds are where paths may lead; with no bounds, everywhere.
type bounds []bound

func (r bounds) close() {
	for i := range r {
		r[i].close()
	}
}

// deepest is the bound that decides on a way, or nil where it leads out of all.
func (r bounds) deepest(dirs []step, extra []string) *bound {
	var found *bound
	for i := range r {
		b := &r[i]
		if b.holds(dirs, extra) && (found == nil || len(b.names) > len(found.names) || len(b.names) == len(found.names) && b.fixed) {
			found = b
		}
	}
	return found
}

// find follows a path, which does not end outside. The last name is followed too when it
// is a link and last is set. Whatever goes wrong outside is errLedOut: nobody learns what
// is there.
func (r bounds) find(name string, last bool) (*spot, error) {
	w := walk{}
	s, err := w.run(name, last)
	if err != nil {
		defer w.close()
		if dirs, extra := w.ahead(); len(r) > 0 && r.deepest(dirs, extra) == nil {
			return nil, errLedOut
		}
		return nil, err
	}
	if len(r) > 0 {
		dirs, extra := s.dirs, s.missing
		switch {
		case s.there && s.name != "":
			dirs = append(slices.Clone(s.dirs), step{name: s.name, id: idOf(&s.st)})
		case !s.there:
			extra = append(slices.Clone(s.missing), s.name)
		}
		if s.bound = r.deepest(dirs, extra); s.bound == nil {
			s.close()
			return nil, errLedOut
		}
	}
	return s, nil
}

// follow finds where a path leads, wherever that is.
func follow(name string, last bool) (*spot, error) { return bounds(nil).find(name, last) }

func (w *walk) close() {
	for _, d := range w.dirs {
		unix.Close(d.fd)
	}
	w.dirs = nil
}

func (w *walk) here() int { return w.dirs[len(w.dirs)-1].fd }

func (w *walk) run(name string, last bool) (*spot, error) {
	if err := w.push(unix.AT_FDCWD, "/", ""); err != nil {
		return nil, err
	}
	w.todo = strings.Split(name, "/")
	for len(w.todo) > 0 {
		if w.steps++; w.steps > maxReachSteps {
			return nil, unix.ENAMETOOLONG
		}
		part := w.todo[0]
		switch part {
		case "", ".":
			w.todo = w.todo[1:]
			continue
		case "..":
			w.todo = w.todo[1:]
			w.up()
			continue
		}
		s, err := w.step(part, last)
		if s != nil || err != nil {
			return s, err
		}
	}
	// It is a directory that the walk is in.
	s := &spot{dirs: w.dirs, there: true}
	if err := unix.Fstat(w.here(), &s.st); err != nil {
		return nil, err
	}
	if n := len(w.dirs) - 1; n > 0 {
		s.name = w.dirs[n].name
		w.up()
		s.dirs = w.dirs
	}
	return s, nil
}

// step takes the next name of the path. It answers with where that leads when it is the last.
func (w *walk) step(part string, last bool) (*spot, error) {
	var st unix.Stat_t
	err := unix.Fstatat(w.here(), part, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return w.gone()
	}
	if err != nil {
		return nil, err
	}
	more := len(w.todo) > 1
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK && (more || last):
		return nil, w.link(part)
	case kind == unix.S_IFDIR && more:
		err := w.push(w.here(), part, part)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) {
			return nil, nil // it has changed: the step is taken again
		}
		if err == nil {
			w.todo = w.todo[1:]
		}
		return nil, err
	case more:
		return nil, unix.ENOTDIR
	case noAccess(&st):
		return nil, unix.EACCES
	}
	return &spot{dirs: w.dirs, name: part, st: st, there: true}, nil
}

// push goes into a directory, which no link may be.
func (w *walk) push(at int, open, name string) error {
	if len(w.dirs) >= maxReachDeep {
		return unix.ENAMETOOLONG
	}
	fd, err := openDirAt(at, open)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && noAccess(&st) {
		err = unix.EACCES
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	w.dirs = append(w.dirs, step{name, fd, idOf(&st)})
	return nil
}

// up goes back to where the walk came from, which is the directory above.
func (w *walk) up() {
	if n := len(w.dirs) - 1; n > 0 {
		unix.Close(w.dirs[n].fd)
		w.dirs = w.dirs[:n:n]
	}
}

// link puts where a link leads in its place.
func (w *walk) link(part string) error {
	if w.links++; w.links > maxReachLinks {
		return unix.ELOOP
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(w.here(), &fs); err != nil || fs.Type == unix.PROC_SUPER_MAGIC {
		return errors.Join(err, unix.ELOOP)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(w.here(), part, buf)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // it is no link any more: the step is taken again
	}
	if err != nil {
		return err
	}
	to := string(buf[:n])
	if to == "" || n == len(buf) {
		return unix.ENOENT
	}
	w.todo = append(strings.Split(to, "/"), w.todo[1:]...)
	if to[0] == '/' {
		for len(w.dirs) > 1 {
			w.up()
		}
	}
	return nil
}

// gone is where a path leads whose next name is not there.
func (w *walk) gone() (*spot, error) {
	if slices.Contains(w.todo, "..") {
		return nil, unix.ENOENT
	}
	_, extra := w.ahead()
	return &spot{dirs: w.dirs, missing: extra[:len(extra)-1], name: extra[len(extra)-1]}, nil
}

// ahead is where the rest of the path would lead if all of it were there, and no link.
func (w *walk) ahead() (dirs []step, extra []string) {
	dirs = w.dirs
	for _, part := range w.todo {
		switch {
		case part == "" || part == ".":
		case part != "..":
			extra = append(extra, part)
		case len(extra) > 0:
			extra = extra[:len(extra)-1]
		case len(dirs) > 1:
			dirs = dirs[:len(dirs)-1]
		}
	}
	return dirs, extra
}

func (s *spot) close() {
	for _, d := range s.dirs {
		unix.Close(d.fd)
	}
	s.dirs = nil
}

// dir is the directory that it is in.
func (s *spot) dir() int { return s.dirs[len(s.dirs)-1].fd }

// isDir is true for a directory, and no link to one.
func (s *spot) isDir() bool { return s.there && s.st.Mode&unix.S_IFMT == unix.S_IFDIR }

// names lead to it from the top, over no link.
func (s *spot) names() []string {
	var names []string
	for _, d := range s.dirs[1:] {
		names = append(names, d.name)
	}
	names = append(names, s.missing...)
	if s.name != "" {
		names = append(names, s.name)
	}
	return names
}

// open opens what is there. A link that has come there meanwhile is an error.
func (s *spot) open(flags int, mode uint32) (*os.File, error) {
	name := s.name
	if name == "" {
		name = "."
	}
	return openAt(s.dir(), name, flags|unix.O_NOFOLLOW, mode)
}

// parents makes the directories that are missing. Those that somebody else makes
// meanwhile are as good, unless they are links.
func (s *spot) parents() error {
	for len(s.missing) > 0 {
		name := s.missing[0]
		if err := unix.Mkdirat(s.dir(), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		w := walk{dirs: s.dirs}
		err := w.push(s.dir(), name, name)
		s.dirs = w.dirs
		if err != nil {
			return err
		}
		s.missing = s.missing[1:]
	}
	return nil
}

// openFound opens what was looked for, and closes the spot; err is what the search ended with.
func (s *spot) openFound(err error, flags int) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	defer s.close()
	if !s.there {
		return nil, unix.ENOENT
	}
	return s.open(flags, 0)
}

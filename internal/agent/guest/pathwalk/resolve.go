//go:build linux

package pathwalk

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxLinks is the kernel's own bound of the links in one path.
	maxLinks = 40
	// maxDepth bounds the directories that are open for one path.
	maxDepth = 512
	// maxSteps bounds the names of one path, those of its links among them.
	maxSteps = 16 << 10
)

// ErrEscaped says that a path leaves every root.
var ErrEscaped = errors.New("the path leads out of where it may")

// FileID tells one file from another as long as it is open.
type FileID struct{ dev, ino uint64 }

// FileIDOf returns the identity of a file that is open.
func FileIDOf(st *unix.Stat_t) FileID { return FileID{uint64(st.Dev), st.Ino} } //nolint:unconvert // its type differs between architectures

// component is one directory of a path.
type component struct {
	name string
	fd   int
	id   FileID
}

// walk follows a path name by name, as the kernel would, and follows symlinks, but not those of
// /proc. It keeps every directory of the path open, so that a process that changes the tree
// meanwhile cannot change where the path has led.
type walk struct {
	dirs         []component // the top first
	todo         []string
	links, steps int
}

// Location is where a path leads: a name in an open directory.
type Location struct {
	dirs []component
	// Missing are the directories of the path that do not exist.
	Missing []string
	// Name is empty for the root directory.
	Name string
	// Stat is the file, if Exists is true.
	Stat   unix.Stat_t
	Exists bool
	// Root is the deepest root that holds the location; nil without roots.
	Root *Root
}

// Root is a directory that a path does not leave.
type Root struct {
	// Names lead to it from the root directory, over no symlink.
	Names []string
	// held is the deepest directory of Names that exists, Depth how many names that is.
	held  int
	Depth int
	id    FileID
	// Fixed: nothing in it is changed.
	Fixed bool
}

// OpenRoot opens the directory name, which need not exist yet.
func OpenRoot(name string, fixed bool) (Root, error) {
	s, err := Resolve(name, true)
	if err != nil {
		return Root{}, err
	}
	defer s.Close()
	b := Root{Fixed: fixed, Depth: len(s.dirs) - 1, id: s.dirs[len(s.dirs)-1].id}
	at, open := s.Dir(), "."
	switch {
	case s.Exists && s.Stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return Root{}, unix.ENOTDIR
	case s.Exists && s.Name != "":
		b.Depth, b.id, open = b.Depth+1, FileIDOf(&s.Stat), s.Name
	}
	b.Names = s.Names()
	if b.held, err = OpenDirAt(at, open); err != nil {
		return Root{}, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(b.held, &st); err == nil && FileIDOf(&st) != b.id {
		err = unix.ENOENT // it was there
	}
	if err == nil && IsKernelFile(b.held) {
		err = unix.EACCES
	}
	if err != nil {
		b.Close()
		return Root{}, err
	}
	return b, nil
}

// Close closes the root's directory.
func (b *Root) Close() { unix.Close(b.held) }

// holds says whether a path leads through b. Extra are its names that do not exist.
func (b *Root) holds(dirs []component, extra []string) bool {
	if len(dirs)-1+len(extra) < len(b.Names) || len(dirs) <= b.Depth || dirs[b.Depth].id != b.id {
		return false
	}
	for i, want := range b.Names {
		if name := nameAt(dirs, extra, i); name != want {
			return false
		}
	}
	return true
}

func nameAt(dirs []component, extra []string, i int) string {
	if i < len(dirs)-1 {
		return dirs[i+1].name
	}
	return extra[i-len(dirs)+1]
}

// Roots are the directories where paths may lead; without roots, paths may lead everywhere.
type Roots []Root

// Close closes the directories of all roots.
func (r Roots) Close() {
	for i := range r {
		r[i].Close()
	}
}

// deepest is the deepest root that holds a path, or nil if the path leaves all roots.
func (r Roots) deepest(dirs []component, extra []string) *Root {
	var found *Root
	for i := range r {
		b := &r[i]
		if b.holds(dirs, extra) && (found == nil || len(b.Names) > len(found.Names) || len(b.Names) == len(found.Names) && b.Fixed) {
			found = b
		}
	}
	return found
}

// Find follows a path, which does not end outside. The last name is followed too when it
// is a link and last is set. Every error outside is ErrEscaped, which does not
// tell what exists there.
func (r Roots) Find(name string, last bool) (*Location, error) {
	w := walk{}
	s, err := w.run(name, last)
	if err != nil {
		defer w.close()
		if dirs, extra := w.ahead(); len(r) > 0 && r.deepest(dirs, extra) == nil {
			return nil, ErrEscaped
		}
		return nil, err
	}
	if len(r) > 0 {
		dirs, extra := s.dirs, s.Missing
		switch {
		case s.Exists && s.Name != "":
			dirs = append(slices.Clone(s.dirs), component{name: s.Name, id: FileIDOf(&s.Stat)})
		case !s.Exists:
			extra = append(slices.Clone(s.Missing), s.Name)
		}
		if s.Root = r.deepest(dirs, extra); s.Root == nil {
			s.Close()
			return nil, ErrEscaped
		}
	}
	return s, nil
}

// Resolve finds where a path leads, wherever that is.
func Resolve(name string, last bool) (*Location, error) { return Roots(nil).Find(name, last) }

func (w *walk) close() {
	for _, d := range w.dirs {
		unix.Close(d.fd)
	}
	w.dirs = nil
}

func (w *walk) here() int { return w.dirs[len(w.dirs)-1].fd }

func (w *walk) run(name string, last bool) (*Location, error) {
	if err := w.push(unix.AT_FDCWD, "/", ""); err != nil {
		return nil, err
	}
	w.todo = strings.Split(name, "/")
	for len(w.todo) > 0 {
		if w.steps++; w.steps > maxSteps {
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
	s := &Location{dirs: w.dirs, Exists: true}
	if err := unix.Fstat(w.here(), &s.Stat); err != nil {
		return nil, err
	}
	if n := len(w.dirs) - 1; n > 0 {
		s.Name = w.dirs[n].name
		w.up()
		s.dirs = w.dirs
	}
	return s, nil
}

// step takes the next name of the path. It answers with where that leads when it is the last.
func (w *walk) step(part string, last bool) (*Location, error) {
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
	case IsMask(&st):
		return nil, unix.EACCES
	}
	return &Location{dirs: w.dirs, Name: part, Stat: st, Exists: true}, nil
}

// push goes into a directory, which no link may be.
func (w *walk) push(at int, open, name string) error {
	if len(w.dirs) >= maxDepth {
		return unix.ENAMETOOLONG
	}
	fd, err := OpenDirAt(at, open)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && IsMask(&st) {
		err = unix.EACCES
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	w.dirs = append(w.dirs, component{name, fd, FileIDOf(&st)})
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
	if w.links++; w.links > maxLinks {
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
func (w *walk) gone() (*Location, error) {
	if slices.Contains(w.todo, "..") {
		return nil, unix.ENOENT
	}
	_, extra := w.ahead()
	return &Location{dirs: w.dirs, Missing: extra[:len(extra)-1], Name: extra[len(extra)-1]}, nil
}

// ahead is where the rest of the path would lead if all of it were there, and no link.
func (w *walk) ahead() (dirs []component, extra []string) {
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

// Close closes the directories of the path.
func (s *Location) Close() {
	for _, d := range s.dirs {
		unix.Close(d.fd)
	}
	s.dirs = nil
}

// Dir is the directory that it is in.
func (s *Location) Dir() int { return s.dirs[len(s.dirs)-1].fd }

// IsDir is true for a directory, and no link to one.
func (s *Location) IsDir() bool { return s.Exists && s.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Names lead to it from the top, over no link.
func (s *Location) Names() []string {
	var names []string
	for _, d := range s.dirs[1:] {
		names = append(names, d.name)
	}
	names = append(names, s.Missing...)
	if s.Name != "" {
		names = append(names, s.Name)
	}
	return names
}

// Open opens what is there. A link that has come there meanwhile is an error.
func (s *Location) Open(flags int, mode uint32) (*os.File, error) {
	name := s.Name
	if name == "" {
		name = "."
	}
	return OpenAt(s.Dir(), name, flags|unix.O_NOFOLLOW, mode)
}

// Parents makes the missing directories. It accepts those that another process makes meanwhile,
// unless they are symlinks.
func (s *Location) Parents() error {
	for len(s.Missing) > 0 {
		name := s.Missing[0]
		if err := unix.Mkdirat(s.Dir(), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		w := walk{dirs: s.dirs}
		err := w.push(s.Dir(), name, name)
		s.dirs = w.dirs
		if err != nil {
			return err
		}
		s.Missing = s.Missing[1:]
	}
	return nil
}

// OpenFound opens the location, and closes its directories; err is the error of the search for it.
func (s *Location) OpenFound(err error, flags int) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if !s.Exists {
		return nil, unix.ENOENT
	}
	return s.Open(flags, 0)
}

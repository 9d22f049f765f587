//go:build linux

package guest

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

// stagingPrefix begins the name of the directory in which an import is put
// together. It is in the target itself, because that may be a mount.
const stagingPrefix = ".cloche-import-"

// isStaging says whether a name at the top of a target is an import's.
func isStaging(name string) bool {
	rest, ok := strings.CutPrefix(name, stagingPrefix)
	return ok && len(rest) == 32
}

// procFD names an open file for calls that take a path only.
func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// atomic unpacks into a directory beside what is there, and moves all of it into
// place when the archive has ended well. Up to then the target is as it was; a
// move that fails is undone.
func (x *unpacker) atomic(target *os.File, in io.Reader) (err error) {
	var before unix.Stat_t
	if err := fstat(target, &before); err != nil {
		return fileError("unpack into", target.Name(), err)
	}
	sweepStagings(target)
	if x.foreign, err = mountsIn(target); err != nil {
		return err
	}
	var random [16]byte
	rand.Read(random[:])
	name := stagingPrefix + hex.EncodeToString(random[:])
	at := int(target.Fd())
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return fileError("unpack into", target.Name(), err)
	}
	defer func() {
		// os.RemoveAll follows no link below, whatever the names are.
		_ = os.RemoveAll(procFD(at) + "/" + name)
		if err != nil {
			_ = setTime(unix.AT_FDCWD, procFD(at)+"/.", time.Unix(before.Mtim.Unix()))
		}
	}()
	s := &swap{target: dirWalk{top: target}, staging: name, keep: newPathSet(x.options.Keep), foreign: x.foreign, came: map[string]bool{}, meta: map[string]dirEnd{}}
	defer s.close()
	for sub, w := range map[string]*dirWalk{"new": &s.fresh, "old": &s.old} {
		if w.top, err = makeDirAt(at, name, sub); err != nil {
			return fileError("unpack into", target.Name(), err)
		}
		defer w.top.Close()
	}
	s.old.mkdir = func(at int, name string) error { return unix.Mkdirat(at, name, 0o700) }
	x.strict = true
	x.dir.entries.top, x.dir.links.top = s.fresh.top, s.fresh.top
	if err := x.all(in); err != nil {
		return err
	}
	// All of the stream belongs to the archive: one that breaks off in what
	// follows has not arrived.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return streamError(err)
	}
	x.dir.entries.close()
	x.dir.links.close()
	err = s.run(x)
	if err != nil {
		if uerr := s.undo(x.keepOwner); uerr != nil {
			return cloche.Errorf(cloche.CodeInternal, "unpack into %.500q: %v; and what was moved cannot be moved back", target.Name(), err).
				WithHint("what was there is in %s", name).WithCause(uerr)
		}
		return fileError("unpack into", target.Name(), err)
	}
	return nil
}

// staleAfter is how old a staging directory is that nobody fills any more: what
// a sandbox left that was killed meanwhile.
const staleAfter = 24 * time.Hour

// sweepStagings removes what killed imports left in a target.
func sweepStagings(target *os.File) {
	w := dirWalk{top: target}
	all, err := names(&w, ".")
	if err != nil {
		return
	}
	for _, name := range all {
		var st unix.Stat_t
		if !isStaging(name) || unix.Fstatat(int(target.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if time.Since(time.Unix(st.Mtim.Unix())) > staleAfter {
			_ = os.RemoveAll(procFD(int(target.Fd())) + "/" + name)
		}
	}
}

// makeDirAt makes a directory in a directory and opens it.
func makeDirAt(at int, dir, name string) (*os.File, error) {
	name = dir + "/" + name
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// mountsIn lists what is mounted below an open directory, relative to it.
func mountsIn(dir *os.File) (pathSet, error) {
	at, err := os.Readlink(procFD(int(dir.Fd())))
	if err != nil {
		return nil, err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found pathSet
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if rel, ok := strings.CutPrefix(unescapeMount(f[4]), strings.TrimSuffix(at, "/")+"/"); ok && rel != "" {
			found = append(found, rel)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// unescapeMount undoes the \ooo with which a list of mounts writes what would
// split its lines.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// swap moves what an archive brought into a target, and what it replaces out of
// it. Each move is one rename, and each can be undone.
type swap struct {
	target, fresh, old dirWalk
	staging            string
	keep, foreign      pathSet
	done               []renaming
	// came are the names that were moved into the target.
	came map[string]bool
	// meta is what directories that stay looked like before.
	meta map[string]dirEnd
}

// renaming moves one name from one tree to another.
type renaming struct {
	name string
	in   bool // from fresh to target; else from target to old
}

func (s *swap) close() {
	s.target.close()
	s.fresh.close()
	s.old.close()
}

func (s *swap) run(x *unpacker) error {
	if x.options.Clear {
		if err := s.clear("."); err != nil {
			return err
		}
	}
	if err := s.merge("."); err != nil {
		return err
	}
	for _, d := range x.dirs {
		if err := s.remember(d.name); err != nil {
			return err
		}
	}
	s.target.leave(0)
	return x.finish(&s.target)
}

// names lists a directory of one of the trees, sorted.
func names(w *dirWalk, dir string) ([]string, error) {
	at, err := w.enter(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	all, err := f.Readdirnames(-1)
	slices.Sort(all)
	return all, err
}

// clear moves what is in a directory of the target away.
func (s *swap) clear(dir string) error {
	all, err := names(&s.target, dir)
	if err != nil {
		return err
	}
	for _, base := range all {
		name := path.Join(dir, base)
		switch {
		case dir == "." && base == s.staging, s.keep.holds(name), s.foreign.holds(name):
		case s.keep.under(name), s.foreign.under(name):
			if kind, err := s.kind(&s.target, name); err != nil || kind != unix.S_IFDIR {
				continue // what is to be kept below it does not exist
			}
			if err := s.clear(name); err != nil {
				return err
			}
		default:
			if err := s.move(renaming{name: name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// kind says what is at a name; 0 is nothing.
func (s *swap) kind(w *dirWalk, name string) (uint32, error) {
	at, err := w.enter(path.Dir(name))
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	err = unix.Fstatat(at, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Mode & unix.S_IFMT, err
}

// merge moves what is in a fresh directory to the target's of that name.
func (s *swap) merge(dir string) error {
	all, err := names(&s.fresh, dir)
	if err != nil {
		return err
	}
	for _, base := range all {
		name := path.Join(dir, base)
		comes, err := s.kind(&s.fresh, name)
		if err != nil {
			return err
		}
		there, err := s.kind(&s.target, name)
		if err != nil {
			return err
		}
		switch {
		case there == unix.S_IFDIR && comes == unix.S_IFDIR:
			if err := s.merge(name); err != nil {
				return err
			}
			continue
		case there == unix.S_IFDIR || there != 0 && comes == unix.S_IFDIR:
			return cloche.Errorf(cloche.CodeExists, "%.200q is a directory in only one of the tar and the place that it goes to", name).
				WithHint("remove what is there first, or clear the directory")
		case there != 0:
			if err := s.move(renaming{name: name}); err != nil {
				return err
			}
		}
		if err := s.move(renaming{name: name, in: true}); err != nil {
			return err
		}
	}
	return nil
}

func (s *swap) move(m renaming) error {
	from, to := &s.target, &s.old
	if m.in {
		from, to = &s.fresh, &s.target
	}
	if err := rename(from, to, m.name); err != nil {
		return err
	}
	s.done = append(s.done, m)
	if m.in {
		s.came[m.name] = true
	}
	return nil
}

// rename moves a name from one tree to the other.
func rename(from, to *dirWalk, name string) error {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	src, err := from.enter(dir)
	if err != nil {
		return err
	}
	dst, err := to.enter(dir)
	if err != nil {
		return err
	}
	return unix.Renameat(src, base, dst, base)
}

// remember notes what a directory that was there before looks like now.
func (s *swap) remember(name string) error {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if s.came[dir] {
			return nil // it came with the archive
		}
	}
	fd, err := s.target.enter(name)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	s.meta[name] = endOf(name, &st)
	return nil
}

// endOf is what a directory looks like.
func endOf(name string, st *unix.Stat_t) dirEnd {
	return dirEnd{name, uint32(st.Mode) & 0o7777, st.Uid, st.Gid, time.Unix(st.Mtim.Unix())}
}

// undo takes back all moves, the last first.
func (s *swap) undo(owners bool) error {
	s.close()
	back := &unpacker{keepOwner: owners, restores: true}
	for _, d := range s.meta {
		back.dirs = append(back.dirs, d)
	}
	slices.SortFunc(back.dirs, func(a, b dirEnd) int { return strings.Compare(a.name, b.name) })
	errs := []error{back.finish(&s.target)}
	s.target.leave(0)
	for _, m := range slices.Backward(s.done) {
		from, to := &s.old, &s.target
		if m.in {
			from, to = &s.target, &s.fresh
		}
		errs = append(errs, rename(from, to, m.name))
	}
	return errors.Join(errs...)
}

//go:build linux

package fsop

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/dirent"
)

// inStaging says whether a part of a path is a name that imports have.
func inStaging(name string) bool {
	if !strings.Contains(name, archive.ImportPrefix) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if archive.IsImport(part) {
			return true
		}
	}
	return false
}

// atomic unpacks into a directory beside what is there, and moves all of it into
// place when the archive has ended well. Up to then the target is as it was; a
// move that fails is undone. What a kill leaves is for recoverImports.
func (x *unpacker) atomic(target *os.File, in io.Reader) (err error) {
	var before unix.Stat_t
	if err := pathwalk.Fstat(target, &before); err != nil {
		return pathwalk.FileError("unpack into", target.Name(), err)
	}
	if !x.hosted {
		if x.foreign, err = mountsIn(target); err != nil {
			return err
		}
	}
	g, err := makeStaging(target, x.step)
	if err != nil {
		return pathwalk.FileError("unpack into", target.Name(), err)
	}
	defer g.dir.Close() // and with it the lock
	defer g.beat()()
	x.looks = fileLooks{}
	s := &swap{looks: x.looks, target: pathwalk.DirWalk{Top: target}, staging: g, keep: archive.NewPathSet(x.options.Keep), foreign: x.foreign, came: map[string]bool{}, meta: map[string]dirEnd{}}
	defer func() {
		s.close()
		if errors.Is(err, errStopped) {
			return
		}
		_ = g.settle(s.plan)
		if err != nil {
			_ = setTime(unix.AT_FDCWD, pathwalk.ProcFD(int(target.Fd()))+"/.", time.Unix(before.Mtim.Unix()))
		}
	}()
	if err := s.open(); err != nil {
		return pathwalk.FileError("unpack into", target.Name(), err)
	}
	defer s.fresh.Top.Close()
	defer s.old.Top.Close()
	x.strict = true
	x.dir.entries.Top, x.dir.links.Top = s.fresh.Top, s.fresh.Top
	if err := x.all(in); err != nil {
		return err
	}
	// All of the stream belongs to the archive: one that breaks off in what
	// follows has not arrived.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return streamError(err)
	}
	x.dir.entries.Close()
	x.dir.links.Close()
	err = s.run(x)
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	if uerr := s.undo(x.keepOwner); uerr != nil {
		return api.Errorf(api.CodeInternal, "unpack into %.500q: %v; and what was moved cannot be moved back", target.Name(), err).
			WithHint("what was there is in %s/%s", g.name, oldName).WithCause(uerr)
	}
	return pathwalk.FileError("unpack into", target.Name(), err)
}

// mountsIn lists what is mounted below an open directory, relative to it.
func mountsIn(dir *os.File) (archive.PathSet, error) {
	at, err := os.Readlink(pathwalk.ProcFD(int(dir.Fd())))
	if err != nil {
		return nil, err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found archive.PathSet
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
	target, fresh, old pathwalk.DirWalk
	staging            *staging
	keep, foreign      archive.PathSet
	// plan are all moves in their order, done those that were made.
	plan, done []renaming
	// gone are the names that the plan moves out of the target, came those that
	// it moves in.
	gone, came map[string]bool
	looks      fileLooks
	// looksFirst: the kernel cannot look and rename at once here.
	looksFirst bool
	// meta is what directories that stay looked like before.
	meta map[string]dirEnd
}

// renaming moves one name from one tree to another: from fresh to the target
// where it has a look, else from the target to old.
type renaming struct {
	name string
	// look is what comes in looks like.
	look string
}

func (m renaming) in() bool { return m.look != "" }

// open makes both trees of the staging directory.
func (s *swap) open() (err error) {
	if s.fresh.Top, err = s.staging.subdir(newName); err != nil {
		return err
	}
	s.old.Top, err = s.staging.subdir(oldName)
	s.old.Mkdir = func(at int, name string) error { return unix.Mkdirat(at, name, 0o700) }
	if err != nil {
		s.fresh.Top.Close()
	}
	return err
}

func (s *swap) close() {
	s.target.Close()
	s.fresh.Close()
	s.old.Close()
}

// run plans, writes the plan down, and then moves. When it returns nil, the
// import counts, also after a kill.
func (s *swap) run(x *unpacker) error {
	s.gone = map[string]bool{}
	if x.options.Clear {
		if err := s.clear("."); err != nil {
			return err
		}
	}
	if err := s.merge("."); err != nil {
		return err
	}
	s.close()
	if err := s.staging.record(s.plan); err != nil {
		return err
	}
	for _, m := range s.plan {
		if err := s.move(m); err != nil {
			return err
		}
	}
	for _, d := range x.dirs {
		if err := s.remember(d.name); err != nil {
			return err
		}
	}
	s.target.Leave(0)
	if err := x.finish(&s.target); err != nil {
		return err
	}
	return s.staging.commit()
}

// names lists a directory of one of the trees, sorted.
func names(w *pathwalk.DirWalk, dir string) ([]string, error) {
	at, err := w.Enter(dir)
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

// listDir lists a directory of one of the trees, sorted, with the kinds that it tells.
func listDir(w *pathwalk.DirWalk, dir string) ([]dirent.Entry, error) {
	at, err := w.Enter(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var all []dirent.Entry
	for buf := make([]byte, dirent.Bytes); ; {
		some, err := dirent.Read(fd, buf)
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			slices.SortFunc(all, func(a, b dirent.Entry) int { return strings.Compare(a.Name, b.Name) })
			return all, nil
		}
		all = append(all, some...)
	}
}

// clear plans to move away what is in a directory of the target. Directories of
// other imports stay: one may hold files that a killed import has left.
func (s *swap) clear(dir string) error {
	all, err := names(&s.target, dir)
	if err != nil {
		return err
	}
	for _, base := range all {
		name := path.Join(dir, base)
		switch {
		case s.keep.Holds(name), s.foreign.Holds(name), dir == "." && s.isImport(base):
		case s.keep.Under(name), s.foreign.Under(name):
			if kind, err := s.kind(&s.target, name); err != nil || kind != unix.S_IFDIR {
				continue // what is to be kept below it does not exist
			}
			if err := s.clear(name); err != nil {
				return err
			}
		default:
			s.out(name)
		}
	}
	return nil
}

// isImport says whether a name at the top of the target is an import's directory.
func (s *swap) isImport(name string) bool {
	if !archive.IsImport(name) {
		return false
	}
	kind, err := s.kind(&s.target, name)
	return err == nil && kind == unix.S_IFDIR
}

// kind says what is at a name; 0 is nothing.
func (s *swap) kind(w *pathwalk.DirWalk, name string) (uint32, error) {
	at, err := w.Enter(path.Dir(name))
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

// merge plans to move what is in a fresh directory to the target's of that name.
func (s *swap) merge(dir string) error {
	all, err := listDir(&s.fresh, dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		name := path.Join(dir, e.Name)
		comes := uint32(e.Kind) << 12 // as the bits of a mode
		if e.Kind == unix.DT_UNKNOWN {
			if comes, err = s.kind(&s.fresh, name); err != nil {
				return err
			}
		}
		there := uint32(0)
		if !s.gone[name] {
			if there, err = s.kind(&s.target, name); err != nil {
				return err
			}
		}
		switch {
		case there == unix.S_IFDIR && comes == unix.S_IFDIR:
			if err := s.merge(name); err != nil {
				return err
			}
			continue
		case there == unix.S_IFDIR || there != 0 && comes == unix.S_IFDIR:
			return api.Errorf(api.CodeExists, "%.200q is a directory in only one of the tar and the place that it goes to", name).
				WithHint("remove what is there first, or clear the directory")
		case there != 0:
			s.out(name)
		}
		look, err := lookOf(&s.fresh, name, s.looks)
		if err != nil {
			return err
		}
		s.plan = append(s.plan, renaming{name, look})
		s.came[name] = true
	}
	return nil
}

// out plans to move a name out of the target.
func (s *swap) out(name string) {
	s.plan = append(s.plan, renaming{name: name})
	s.gone[name] = true
}

func (s *swap) move(m renaming) error {
	// In old/, which is new, there is nothing to replace.
	from, to, how := &s.target, &s.old, renameOver
	if m.in() {
		from, to, how = &s.fresh, &s.target, s.renameNew
	}
	err := renameBy(how, from, to, m.name)
	if errors.Is(err, unix.EEXIST) {
		return api.Errorf(api.CodeExists, "%.200q was made while the tar was put in place", m.name).WithHint("import again")
	}
	if err != nil {
		return err
	}
	s.done = append(s.done, m)
	return s.staging.step()
}

// rename moves a name from one tree to the other, where nothing has it.
func (s *swap) rename(from, to *pathwalk.DirWalk, name string) error {
	return renameBy(s.renameNew, from, to, name)
}

func renameOver(src, dst int, base string) error { return unix.Renameat(src, base, dst, base) }

func renameBy(how func(src, dst int, base string) error, from, to *pathwalk.DirWalk, name string) error {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	src, err := from.Enter(dir)
	if err != nil {
		return err
	}
	dst, err := to.Enter(dir)
	if err != nil {
		return err
	}
	return how(src, dst, base)
}

// renameNew moves a name to another directory and replaces nothing.
func (s *swap) renameNew(src, dst int, base string) error {
	if !s.looksFirst {
		err := unix.Renameat2(src, base, dst, base, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		s.looksFirst = true
	}
	return renameSeen(src, dst, base)
}

// renameSeen is renameNew for what cannot look and rename in one step: gVisor in a
// directory that others change too, and some filesystems.
func renameSeen(src, dst int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dst, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	} else if !errors.Is(err, unix.ENOENT) {
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
	fd, err := s.target.Enter(name)
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
	s.target.Leave(0)
	for _, m := range slices.Backward(s.done) {
		from, to := &s.old, &s.target
		if m.in() {
			from, to = &s.target, &s.fresh
		}
		errs = append(errs, s.rename(from, to, m.name))
	}
	return errors.Join(errs...)
}

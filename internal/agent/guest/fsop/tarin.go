//go:build linux

package fsop

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
)

// unpacker unpacks one tar below a directory, through no symlink.
type unpacker struct {
	dir walkPair
	// strict: the directory is empty at first, so that what is in the way of an
	// entry is another one.
	strict bool
	// rules are those of the mounts, base the path of the directory.
	rules   *pathwalk.Restrictions
	base    string
	options wire.Tar
	exclude archive.PathSet
	// foreign are what is mounted below the target, where nothing can be renamed to.
	foreign   archive.PathSet
	budget    *archive.Budget
	keepOwner bool
	// restores: dirs are what the directories were before.
	restores bool
	// hosted: it runs on the host, beside the sandbox, and nothing is mounted below the target.
	hosted bool
	// setMode is pathwalk.SetMode, or what does the same on the host.
	setMode func(fd int, mode uint32) error
	// modesKept: files are made with the mode that was asked for.
	modesKept bool
	report    api.TarReport
	// dirs get their modes and times last, when nothing is written in them any
	// more.
	dirs []dirEnd
	buf  []byte
	// looks are what files look like that are put in place later; nil notes none.
	looks fileLooks
	// stop is called after each step of an atomic import by tests, which end it
	// there as a kill does.
	stop func() error
}

// step is to be called after whatever an atomic import changes.
func (x *unpacker) step() error {
	if x.stop == nil {
		return nil
	}
	return x.stop()
}

// walkPair are two ways through one tree: a hard link has two ends.
type walkPair struct{ entries, links pathwalk.DirWalk }

// dirEnd is what a directory is to look like at the end.
type dirEnd struct {
	name     string
	mode     uint32
	uid, gid uint32
	time     time.Time
}

// maxDirEnds bounds the directories whose times are remembered.
const maxDirEnds = 1 << 18

// importLimits bound an archive that comes in. What its files may have together
// is the disk's to say; the bound is for what only claims to be large.
func importLimits() archive.Limits {
	return archive.Limits{Entries: pack.MaxEntries, Bytes: 1 << 40, Depth: pack.MaxDepth, NameLen: unix.NAME_MAX}
}

// tarIn unpacks what the host sends below the directory name.
func (fo *Files) tarIn(p *session.Call, name, owner string, o wire.Tar) error {
	u, err := fo.ownerOf(owner, o)
	if err != nil {
		return err
	}
	made, err := fo.makeTarget(name, u)
	if err != nil {
		return err
	}
	d, err := pathwalk.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return errors.Join(pathwalk.FileError("unpack into", name, err), made.undo())
	}
	defer d.Close()
	frames := p.Data()
	in := newReadAhead(frames)
	x := newUnpacker(name, o)
	x.rules = fo.rules
	if x.moves() {
		recoverImports(d, fo.asOwner)
	}
	err = x.unpack(d, in, func(fn func() error) error { return fo.id.As(u, fn) })
	if in.close(p) != nil && err == nil {
		err = session.ErrGivenUp
	}
	if err != nil {
		if x.moves() {
			_ = made.undo() // what remains is an empty directory
		}
		return err
	}
	return p.JSON(wire.KindReply, x.report)
}

// ownerOf returns the user that owns the files of an import.
func (fo *Files) ownerOf(owner string, o wire.Tar) (identity.User, error) {
	if o.KeepOwner {
		owner = "0:0"
	}
	u, err := fo.users.Lookup(owner)
	if err == nil && o.KeepOwner && (!fo.id.Privileged || fo.users.Single) {
		err = api.Invalid("owner", "the owners of the archive cannot be kept: this sandbox has one user only").
			WithHint("leave owner out")
	}
	return u, err
}

// newUnpacker returns an unpacker of a tar into the directory whose path inside is name.
func newUnpacker(name string, o wire.Tar) *unpacker {
	return &unpacker{
		rules: &pathwalk.Restrictions{}, base: name, options: o, exclude: archive.NewPathSet(o.Exclude), budget: archive.NewBudget(importLimits()),
		keepOwner: o.KeepOwner, setMode: pathwalk.SetMode, buf: make([]byte, 256<<10),
	}
}

// moves says whether the archive is unpacked apart and moved into place when all of it has arrived.
func (x *unpacker) moves() bool { return x.options.Atomic || x.options.Clear }

// unpack unpacks a stream, which as runs with the rights of the owner, and reads the stream to its end.
func (x *unpacker) unpack(d *os.File, in io.Reader, as func(fn func() error) error) error {
	err := as(func() error {
		if x.moves() {
			return x.atomic(d, in)
		}
		x.dir.entries.Top, x.dir.links.Top = d, d
		return x.all(in)
	})
	x.dir.entries.Close()
	x.dir.links.Close()
	if err == nil {
		// What follows the end of the archive is padding; the sender ends it.
		_, err = io.CopyBuffer(io.Discard, in, x.buf)
	}
	return err
}

// madeDirs are the directories that an import made to have a target, the
// outermost first.
type madeDirs []string

func (m madeDirs) undo() error {
	for i := len(m) - 1; i >= 0; i-- {
		if err := unix.Rmdir(m[i]); err != nil {
			return err
		}
	}
	return nil
}

// makeTarget makes the directory name where it is missing.
func (fo *Files) makeTarget(name string, u identity.User) (madeDirs, error) {
	var missing madeDirs
	for dir := path.Clean(name); dir != "/"; dir = path.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); !errors.Is(err, unix.ENOENT) {
			break
		}
		missing = append(madeDirs{dir}, missing...)
	}
	if err := fo.id.As(u, func() error { return pathwalk.MkdirAll(name, 0o755) }); err != nil {
		return nil, pathwalk.FileError("make directory", name, err)
	}
	return missing, nil
}

func (x *unpacker) all(r io.Reader) error {
	x.dir.entries.Mkdir = func(at int, name string) error { return unix.Mkdirat(at, name, 0o755) }
	in := &untilEnd{r: r}
	if err := x.entries(tar.NewReader(in)); err != nil {
		return err
	}
	if x.strict {
		if in.ended {
			return streamError(errNoEndMark)
		}
		return nil // what moves it into place finishes it
	}
	return x.finish(&x.dir.entries)
}

// errNoEndMark is about an archive that was cut between two entries, where a tar
// reader sees nothing wrong.
var errNoEndMark = errors.New("it ends without its end mark")

// untilEnd notices that a stream ended during a read.
type untilEnd struct {
	r     io.Reader
	ended bool
}

func (u *untilEnd) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err == io.EOF { //nolint:errorlint // session.Data's own
		u.ended = true
	}
	return n, err
}

func (x *unpacker) entries(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return streamError(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if strings.HasPrefix(h.Name, "/") || h.Typeflag == tar.TypeLink && strings.HasPrefix(h.Linkname, "/") {
			return errOutside(h.Name)
		}
		e, err := archive.CheckHeader(h, x.budget)
		if err != nil {
			return badArchive(err)
		}
		if err := x.entry(e, tr); err != nil {
			return x.rules.Explain(path.Join(x.base, e.Path), unpackError(e.Path, err))
		}
	}
}

// badArchive says where in the request it is that something is wrong.
func badArchive(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		e.Field = "body"
	}
	return err
}

// streamError tells a bad archive from a transfer that ended.
func streamError(err error) error {
	if errors.Is(err, session.ErrGivenUp) {
		return err
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	return api.Invalid("body", "the tar cannot be read: %w", err).WithHint("send an uncompressed tar, and all of it")
}

func errOutside(name string) *api.Error {
	return api.Invalid("body", "the tar names %.200q, which is outside of the directory to unpack in", name).
		WithHint("names in it are relative and without ..")
}

// unpackError classifies an error of one entry.
func unpackError(name string, err error) error {
	if errors.Is(err, session.ErrGivenUp) {
		return err
	}
	return pathwalk.FileError("unpack", name, err)
}

func (x *unpacker) skip(name, reason string) { archive.Skip(&x.report, name, reason) }

func (x *unpacker) entry(e archive.Entry, r io.Reader) error {
	if x.exclude.Holds(e.Path) {
		return nil
	}
	if inStaging(e.Path) {
		x.skip(e.Path, "it is an import on its way")
		return nil
	}
	if x.strict && x.foreign.Holds(e.Path) {
		if err := x.rules.Explain(path.Join(x.base, e.Path), unix.EROFS); errors.Is(err, api.ErrDenied) {
			return err
		}
		return api.Invalid("body", "the tar has %.200q, which lies in a mount of its own and cannot be put in place with the rest", e.Path).
			WithHint("exclude it, and import into the mount by itself")
	}
	if x.keepOwner && (e.UID >= identity.AgentID || e.GID >= identity.AgentID) {
		return api.Invalid("body", "%.200q in the tar belongs to %d:%d, which no file in a sandbox can", e.Path, e.UID, e.GID)
	}
	var err error
	switch e.Kind {
	case archive.Dir:
		err = x.makeDir(e)
	case archive.File:
		err = x.file(e, r)
	case archive.Symlink:
		return x.symlink(e)
	case archive.HardLink:
		return x.hardLink(e)
	case archive.Device:
		if x.strict {
			return api.Invalid("body", "%.200q in the tar is a device", e.Path).WithHint("exclude it")
		}
		fallthrough
	default:
		x.skip(e.Path, "it is a "+e.Kind.String())
		return nil
	}
	if err == nil {
		x.report.Entries++
		for name := range e.Xattrs {
			if strings.HasPrefix(name, "security.") {
				x.skip(e.Path, fmt.Sprintf("its attribute %.100q is not taken", name))
			}
		}
	}
	return err
}

// parent opens the directory that an entry is in, and makes it where it is
// missing.
func (x *unpacker) parent(name string) (int, string, error) {
	at, err := x.dir.entries.Enter(path.Dir(name))
	return at, path.Base(name), err
}

func (x *unpacker) makeDir(e archive.Entry) error {
	end := dirEnd{e.Path, e.Mode, e.UID, e.GID, e.ModTime}
	if e.Path != "." {
		at, base, err := x.parent(e.Path)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(at, base, 0o700)
		if errors.Is(err, unix.EEXIST) {
			var st unix.Stat_t
			if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return x.conflict(e, &st)
			}
		} else if err != nil {
			return err
		}
	}
	if len(x.dirs) >= maxDirEnds {
		return api.Errorf(api.CodeTooLarge, "the tar has more than %d directories", maxDirEnds).WithHint("unpack it in parts")
	}
	x.dirs = append(x.dirs, end)
	return nil
}

// conflict is an entry that is in the way of another kind of thing.
func (x *unpacker) conflict(e archive.Entry, st *unix.Stat_t) *api.Error {
	there := "a file"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		there = "a directory"
	case unix.S_IFLNK:
		there = "a symlink"
	}
	if x.strict {
		return api.Invalid("body", "%.200q is in the tar as %s and as a %s", e.Path, there, e.Kind).WithHint("make the archive again")
	}
	return api.Errorf(api.CodeExists, "%.200q in the tar is a %s, and where it goes is %s", e.Path, e.Kind, there).
		WithHint("remove it first, or clear the directory")
}

// makeWay removes what an entry that is no directory replaces. Of two files of an archive with one
// name, the later one stays.
func (x *unpacker) makeWay(at int, base string, e archive.Entry) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR || x.strict && (kind == unix.S_IFLNK) != (e.Kind == archive.Symlink) {
		return x.conflict(e, &st)
	}
	return unix.Unlinkat(at, base, 0)
}

// retry does fn, and once more when what was in the way is gone.
func (x *unpacker) retry(at int, base string, e archive.Entry, fn func() error) error {
	err := fn()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := x.makeWay(at, base, e); err != nil {
		return err
	}
	return fn()
}

func (x *unpacker) file(e archive.Entry, r io.Reader) error {
	if e.Path == "." {
		return errOutside(e.Path)
	}
	at, base, err := x.parent(e.Path)
	if err != nil {
		return err
	}
	mode := uint32(0o600)
	if e.Mode&^0o755 == 0 && e.Mode&0o600 == 0o600 {
		mode = e.Mode // which no sensible umask changes
	}
	fd := -1
	err = x.retry(at, base, e, func() (err error) {
		fd, err = unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	n, err := x.copy(f, r)
	x.report.Bytes += n
	if err != nil {
		return err
	}
	if err := x.attributes(fd, mode, e); err != nil {
		return err
	}
	if x.looks != nil {
		x.looks.note(e.Path, n, e.ModTime)
	}
	return f.Close()
}

// copy writes the content of a file. What is zeros for a whole buffer becomes a
// hole, as it mostly was one.
func (x *unpacker) copy(f *os.File, r io.Reader) (int64, error) {
	var total, written int64
	for {
		n, rerr := readSome(r, x.buf)
		if hole := n == len(x.buf) && zeros(x.buf); !hole && n > 0 {
			if _, err := f.WriteAt(x.buf[:n], total); err != nil {
				return total, err
			}
			written = total + int64(n)
		}
		total += int64(n)
		if rerr == io.EOF && total > written { //nolint:errorlint // the tar reader's own
			return total, f.Truncate(total) // it ends in a hole
		}
		if rerr == io.EOF { //nolint:errorlint // as above
			return total, nil
		}
		if rerr != nil {
			return total, streamError(fmt.Errorf("read entry: %w", rerr))
		}
	}
}

// zeros says whether b, which is longer than a word, is nothing else.
func zeros(b []byte) bool {
	const word = 16
	var zero [word]byte
	return bytes.Equal(b[:word], zero[:]) && bytes.Equal(b[:len(b)-word], b[word:])
}

func (x *unpacker) symlink(e archive.Entry) error {
	if links := x.options.Links; links != api.LinksKeep && links != "" && external(e.Path, e.Target) {
		if links == api.LinksReject {
			return api.Invalid("body", "the symlink %.200q in the tar leads out of the directory, to %.200q", e.Path, e.Target).
				WithHint("keep or drop such links with external_symlinks")
		}
		x.skip(e.Path, "it is a symlink that leads out of the directory")
		return nil
	}
	at, base, err := x.parent(e.Path)
	if err != nil {
		return err
	}
	if err := x.retry(at, base, e, func() error { return unix.Symlinkat(e.Target, at, base) }); err != nil {
		return err
	}
	if x.keepOwner && (e.UID != 0 || e.GID != 0) {
		if err := unix.Fchownat(at, base, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	x.report.Entries++
	return nil
}

// external says whether a symlink leads out of the directory that its archive is
// unpacked in, as far as its text tells.
func external(name, target string) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	depth := strings.Count(name, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}

// hardLink makes another name of a file, which is one of the archive's when that
// is unpacked apart.
func (x *unpacker) hardLink(e archive.Entry) error {
	if x.exclude.Holds(e.Target) {
		x.skip(e.Path, "it is a hard link to a file that is excluded")
		return nil
	}
	// Another name of what a rule covers is refused by that rule.
	missing := x.rules.Explain(path.Join(x.base, e.Target), unix.EXDEV)
	if !errors.Is(missing, api.ErrDenied) {
		missing = api.Invalid("body", "the hard link %.200q in the tar is of %.200q, which is no file before it", e.Path, e.Target).
			WithHint("an archive has the file itself before its other names")
	}
	from, err := x.dir.links.Enter(path.Dir(e.Target))
	if errors.Is(err, unix.ENOENT) {
		return missing
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstatat(from, path.Base(e.Target), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return missing
	}
	if err != nil {
		return err
	}
	if e.Path == e.Target {
		return nil
	}
	at, base, err := x.parent(e.Path)
	if err != nil {
		return err
	}
	if err := x.retry(at, base, e, func() error { return unix.Linkat(from, path.Base(e.Target), at, base, 0) }); err != nil {
		return x.rules.Explain(path.Join(x.base, e.Target), err)
	}
	if x.looks != nil {
		x.looks.noteSame(e.Path, e.Target)
	}
	x.report.Entries++
	return nil
}

package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Extractor writes entries below a directory. It follows no symlink there, nor
// one that it has made itself; a symlink that an archive brings is made as it is.
// Files that are in the way of files are replaced, directories are kept and
// merged, and neither takes the other's place.
type Extractor struct {
	// Root is where entries go. It stays open.
	Root *os.Root
	// Owners gives files the owners that the archive names; otherwise they belong
	// to whoever extracts.
	Owners bool
	// Keep, when set, says which entries are wanted.
	Keep func(Entry) bool
}

// Skip is an entry that was not extracted.
type Skip struct {
	Path   string
	Reason string
}

// Report is what became of an archive.
type Report struct {
	// Entries and Bytes count what was written.
	Entries, Bytes int64
	// Skipped are the entries that nobody makes from an archive, at most
	// maxSkipped of them; MoreSkipped counts the rest.
	Skipped     []Skip
	MoreSkipped int64
}

const maxSkipped = 100

// extraction is one Extract on its way.
type extraction struct {
	x      Extractor
	report Report
	// dirs get their mode and time when everything is in them.
	dirs []Entry
	// at is the open directory called dir, kept for the next entry.
	at  *os.Root
	dir string
}

// Extract writes all entries of r. On error what was written stays, and the
// report says how much.
func (x Extractor) Extract(ctx context.Context, r *Reader) (Report, error) {
	e := &extraction{x: x, dir: "."}
	defer e.leave()
	for {
		if err := ctx.Err(); err != nil {
			return e.report, err
		}
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return e.report, e.finish()
		}
		if err != nil {
			return e.report, err
		}
		if x.Keep != nil && !x.Keep(entry) {
			continue
		}
		if err := e.entry(ctx, entry, r); err != nil {
			return e.report, place(entry.Path, err)
		}
	}
}

// place says where it was that a filesystem refused something, without its path
// outside.
func place(name string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("extract %s: %w", clip(name), err)
}

func (e *extraction) entry(ctx context.Context, entry Entry, content io.Reader) error {
	if entry.Path == "." {
		return nil // the root is whose it is
	}
	var err error
	switch entry.Kind {
	case Dir:
		err = e.makeDir(entry)
	case File:
		err = e.makeFile(ctx, entry, content)
	case Symlink:
		err = e.makeSymlink(entry)
	case HardLink:
		err = e.makeLink(entry)
	default:
		if len(e.report.Skipped) < maxSkipped {
			e.report.Skipped = append(e.report.Skipped, Skip{entry.Path, "it is a " + entry.Kind.String()})
		} else {
			e.report.MoreSkipped++
		}
		return nil
	}
	if err == nil {
		e.report.Entries++
	}
	return err
}

// enter opens the directory called dir below the root, making what is missing of
// it, and goes through no symlink on the way.
func (e *extraction) enter(dir string) (*os.Root, error) {
	dir = path.Clean(dir)
	if e.at != nil && dir == e.dir {
		return e.at, nil
	}
	e.leave()
	at, err := e.x.Root.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	for rest := dir; rest != "" && rest != "."; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next, err := step(at, part)
		at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	e.at, e.dir = at, dir
	return at, nil
}

// step opens a directory that is directly in at and makes it when it is missing.
func step(at *os.Root, name string) (*os.Root, error) {
	info, err := at.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := at.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		info, err = at.Lstat(name)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, notDir(name)
	}
	next, err := at.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	// Between looking and opening somebody may have put a symlink there.
	now, err := next.Stat(".")
	if err != nil || !os.SameFile(info, now) {
		next.Close()
		return nil, errors.Join(err, notDir(name))
	}
	return next, nil
}

func notDir(name string) error {
	return broken("%q is on the way of an entry and is no directory", clip(name))
}

func (e *extraction) leave() {
	if e.at != nil {
		e.at.Close()
		e.at = nil
	}
}

// clearName makes room for something that is no directory.
func clearName(at *os.Root, name string) error {
	info, err := at.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return broken("a directory is where %q should be", clip(name))
	}
	return at.Remove(name)
}

func (e *extraction) makeDir(entry Entry) error {
	parent, err := e.enter(path.Dir(entry.Path))
	if err != nil {
		return err
	}
	at, err := step(parent, path.Base(entry.Path))
	if err != nil {
		return err
	}
	e.dirs = append(e.dirs, entry)
	return at.Close()
}

func (e *extraction) makeFile(ctx context.Context, entry Entry, content io.Reader) error {
	at, err := e.enter(path.Dir(entry.Path))
	if err != nil {
		return err
	}
	name := path.Base(entry.Path)
	if err := clearName(at, name); err != nil {
		return err
	}
	f, err := at.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, &interruptible{ctx, content})
	e.report.Bytes += n
	if err == nil && n != entry.Size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = e.own(at, name, entry)
	}
	if err == nil {
		err = f.Chmod(fileMode(entry.Mode))
	}
	return errors.Join(err, f.Close(), e.time(at, name, entry))
}

// interruptible is a reader that ends with its context.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

func (e *extraction) makeSymlink(entry Entry) error {
	at, err := e.enter(path.Dir(entry.Path))
	if err != nil {
		return err
	}
	name := path.Base(entry.Path)
	if err := clearName(at, name); err != nil {
		return err
	}
	if err := at.Symlink(entry.Target, name); err != nil {
		return err
	}
	return e.own(at, name, entry)
}

// makeLink makes another name for a file of the archive or of the directory, and
// for nothing that a symlink leads to.
func (e *extraction) makeLink(entry Entry) error {
	from, err := e.enter(path.Dir(entry.Target))
	if err != nil {
		return err
	}
	info, err := from.Lstat(path.Base(entry.Target))
	if err != nil || info.IsDir() {
		return broken("the hard link %q is of %q, which is not there or a directory", clip(entry.Path), clip(entry.Target)).WithCause(err)
	}
	at, err := e.enter(path.Dir(entry.Path))
	if err != nil {
		return err
	}
	if entry.Path == entry.Target {
		return nil
	}
	if err := clearName(at, path.Base(entry.Path)); err != nil {
		return err
	}
	// Every directory on both ways was just seen to be one. Root itself lets
	// neither way lead out of it, whatever becomes of them meanwhile.
	return e.x.Root.Link(entry.Target, entry.Path)
}

func (e *extraction) own(at *os.Root, name string, entry Entry) error {
	if !e.x.Owners || runtime.GOOS == "windows" {
		return nil
	}
	return at.Lchown(name, int(entry.UID), int(entry.GID))
}

func (e *extraction) time(at *os.Root, name string, entry Entry) error {
	if entry.ModTime.IsZero() {
		return nil
	}
	return at.Chtimes(name, time.Time{}, entry.ModTime)
}

// finish gives directories what the writing of their content would have changed,
// the deepest first.
func (e *extraction) finish() error {
	for i := len(e.dirs) - 1; i >= 0; i-- {
		entry := e.dirs[i]
		parent, err := e.enter(path.Dir(entry.Path))
		if err != nil {
			return place(entry.Path, err)
		}
		name := path.Base(entry.Path)
		info, err := parent.Lstat(name)
		if err == nil && !info.IsDir() {
			continue // a later entry could not replace it, somebody else did
		}
		if err == nil {
			err = e.own(parent, name, entry)
		}
		if err == nil {
			err = parent.Chmod(name, fileMode(entry.Mode))
		}
		if err == nil {
			err = e.time(parent, name, entry)
		}
		if err != nil {
			return place(entry.Path, err)
		}
	}
	return nil
}

// fileMode is a mode of an archive as Go has it. Setuid and setgid are not taken
// from an archive that anybody may have written.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	if mode&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}

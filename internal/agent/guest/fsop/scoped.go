//go:build linux

package fsop

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/dirent"
)

// scope carries out one request that says as whom, or within what, files are used. Paths
// are followed here and not by the kernel; what is done at their end is done by the
// kernel, with the rights of that user.
type scope struct {
	*wire.Place
	bounds pathwalk.Roots
	// rights runs what is judged, and makes what makes files.
	rights, makes func(func() error) error
	// user is who keeps what is written, if that is not privileged; nil is the agent.
	user *identity.User
}

// doScoped carries out what concerns files in a place.
func (fo *Files) doScoped(p *session.Call, name string, req *wire.Request) error {
	pl, err := fo.scopeOf(req)
	if err != nil {
		return err
	}
	defer pl.bounds.Close()
	switch req.Op {
	case wire.OpStat:
		info, err := pl.stat(name)
		if err != nil {
			return pathwalk.FileError("describe", name, err)
		}
		return p.JSON(wire.KindReply, wire.FileReply{Info: identity.Named([]api.FileInfo{info})[0]})
	case wire.OpList:
		l, err := pl.list(name, string(req.Cursor), req.Limit)
		if err != nil {
			return pathwalk.FileError("list", name, err)
		}
		l.Files = identity.Named(l.Files)
		return p.JSON(wire.KindReply, l)
	case wire.OpWatchFiles:
		var dir *os.File
		err := pl.rights(func() (err error) {
			dir, err = pl.openAt(name, unix.O_RDONLY|unix.O_DIRECTORY)
			return err
		})
		if err != nil {
			return watchError(name, err)
		}
		return fo.watch(p, name, dir, pl.rights, req)
	case wire.OpRead:
		f, err := pl.openFile(name)
		if err != nil {
			return pathwalk.FileError("read", name, err)
		}
		return sendFile(p, name, f, req.Offset, req.Length)
	case wire.OpWrite:
		return pl.write(p, name, req)
	case wire.OpMakeDir:
		return p.Done(pl.makeDir(name, req.Mode))
	case wire.OpMove:
		return p.Done(pl.move(name, string(req.To)))
	case wire.OpRemove:
		return p.Done(pl.remove(name, req.Recursive))
	}
	return api.Errorf(api.CodeUnsupported, "operation %.40q is for no user and within no directory", string(req.Op))
}

// scopeOf finds the user and the directories of a request.
func (fo *Files) scopeOf(req *wire.Request) (*scope, error) {
	pl := &scope{Place: req.Place}
	if pl.User != "" {
		u, err := fo.users.Lookup(pl.User)
		if err != nil {
			return nil, err
		}
		pl.rights = func(fn func() error) error { return fo.id.With(u, fn) }
		pl.makes = pl.rights
		if !u.Root() {
			pl.user = &u
		}
	} else {
		u, err := fo.users.Lookup(req.User)
		if err != nil {
			return nil, err
		}
		pl.rights = func(fn func() error) error { return fn() }
		pl.makes = func(fn func() error) error { return fo.id.As(u, fn) }
	}
	if len(pl.Within)+len(pl.ReadWithin) > api.MaxFileWithin {
		return nil, api.Invalid("within", "%d directories are named", len(pl.Within)+len(pl.ReadWithin)).WithHint("at most %d", api.MaxFileWithin)
	}
	for i, name := range slices.Concat(pl.Within, pl.ReadWithin) {
		field, fixed := "within", i >= len(pl.Within)
		if fixed {
			field = "read_within"
		}
		b, err := boundAt(field, string(name), fixed)
		if err != nil {
			pl.bounds.Close()
			return nil, err
		}
		pl.bounds = append(pl.bounds, b)
	}
	return pl, nil
}

// boundAt is the directory that a request names.
func boundAt(field, name string, fixed bool) (pathwalk.Root, error) {
	if err := pathwalk.CheckPath(field, name); err != nil {
		return pathwalk.Root{}, err
	}
	b, err := pathwalk.OpenRoot(name, fixed)
	if err == nil && len(b.Names) == 0 {
		b.Close()
		return pathwalk.Root{}, api.Invalid(field, "%.500q is the root of the file system, out of which nothing leads", name).WithHint("leave it out, or name a directory in it")
	}
	if err == nil {
		return b, nil
	}
	err = pathwalk.FileError("use", name, err)
	if e, ok := errors.AsType[*api.Error](err); ok {
		e.Field = field
	}
	return pathwalk.Root{}, err
}

// find follows a path to where it leads.
func (pl *scope) find(name string, last bool) (*pathwalk.Location, error) {
	s, err := pl.bounds.Find(name, last)
	if errors.Is(err, pathwalk.ErrEscaped) {
		return nil, pl.refused(api.RuleWithin, name, "leads out of what the request names: %s")
	}
	return s, err
}

// change is find of what is to be changed.
func (pl *scope) change(name string, last bool) (*pathwalk.Location, error) {
	s, err := pl.find(name, last)
	if err == nil && s.Root != nil && s.Root.Fixed {
		s.Close()
		return nil, pl.refused(api.RuleReadWithin, name, "is in a directory that the request names for reading only, of %s")
	}
	return s, err
}

func (pl *scope) refused(rule, name, why string) error {
	var shownAll []string
	for _, b := range slices.Concat(pl.Within, pl.ReadWithin) {
		shownAll = append(shownAll, pathwalk.Text(string(b)))
	}
	all := strings.Join(shownAll, ", ")
	if len(all) > 500 {
		all = "what the request names"
	}
	e := api.Errorf(api.CodeDenied, "%.500q "+why, name, all).WithHint("the request itself says where it may lead")
	e.Rule = rule
	return e
}

// whole refuses to take away a directory that the request names, or one above it that it
// must not change.
func (pl *scope) whole(name string, s *pathwalk.Location) error {
	at := s.Names()
	for _, b := range pl.bounds {
		if len(at) <= len(b.Names) && slices.Equal(at, b.Names[:len(at)]) && (b.Fixed || len(at) == len(b.Names)) {
			rule := api.RuleWithin
			if b.Fixed {
				rule = api.RuleReadWithin
			}
			return pl.refused(rule, name, "is a directory that the request names, or holds one: %s")
		}
	}
	return nil
}

func (pl *scope) stat(name string) (info api.FileInfo, err error) {
	err = pl.rights(func() error {
		s, err := pl.find(name, pl.Follow)
		if err != nil {
			return err
		}
		defer s.Close()
		if !s.Exists {
			return unix.ENOENT
		}
		info, err = pathwalk.DescribeAt(s.Dir(), s.Name, &s.Stat)
		return err
	})
	return info, err
}

func (pl *scope) list(name, cursor string, limit int) (l api.FileList, err error) {
	err = pl.rights(func() error {
		d, err := pl.openAt(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer d.Close()
		l, err = listOpen(d, name, cursor, limit)
		return err
	})
	return l, err
}

// openAt opens what a path leads to.
func (pl *scope) openAt(name string, flags int) (*os.File, error) {
	s, err := pl.find(name, true)
	return s.OpenFound(err, flags)
}

func (pl *scope) openFile(name string) (f *os.File, err error) {
	err = pl.rights(func() error {
		f, err = pl.openAt(name, unix.O_RDONLY)
		return err
	})
	return f, err
}

// makeDir makes a directory: with those above it and no error where it is there, or
// exactly it.
func (pl *scope) makeDir(name string, mode uint32) error {
	if mode == 0 {
		mode = 0o755
	}
	if mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", mode)
	}
	var s *pathwalk.Location
	err := pl.rights(func() (err error) {
		s, err = pl.change(name, true)
		return err
	})
	if err != nil {
		return pathwalk.FileError("make directory", name, err)
	}
	defer s.Close()
	switch {
	case s.IsDir() && !pl.Exact:
		return nil
	case s.Exists:
		return pathwalk.FileError("make directory", name, unix.EEXIST)
	case pl.Exact && len(s.Missing) > 0:
		return pathwalk.FileError("make directory", name, unix.ENOENT)
	}
	err = pl.makes(func() error {
		if err := s.Parents(); err != nil {
			return err
		}
		return makeExactDir(s.Dir(), s.Name, mode, pl.Exact)
	})
	if err != nil {
		return pathwalk.FileError("make directory", name, err)
	}
	return nil
}

// makeExactDir makes a directory with exactly that mode. One that another process makes meanwhile
// is accepted, unless it must be new.
func makeExactDir(at int, name string, mode uint32, isNew bool) error {
	err := unix.Mkdirat(at, name, mode&0o777)
	if err != nil && (isNew || !errors.Is(err, unix.EEXIST)) {
		return err
	}
	fd, oerr := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if oerr != nil {
		if err == nil && mode&0o400 == 0 && errors.Is(oerr, unix.EACCES) {
			return nil // its own user may not read it, and asked for that
		}
		return oerr
	}
	defer unix.Close(fd)
	if err != nil || mode&^0o022 == mode && mode <= 0o777 {
		return nil
	}
	return pathwalk.SetMode(fd, mode)
}

func (pl *scope) move(from, to string) error {
	if err := pathwalk.CheckPath("to", to); err != nil {
		return err
	}
	err := pl.rights(func() error {
		s, err := pl.change(from, false)
		if err != nil {
			return err
		}
		defer s.Close()
		if !s.Exists {
			return unix.ENOENT
		}
		if s.IsDir() {
			if err := pl.whole(from, s); err != nil {
				return err
			}
		}
		t, err := pl.change(to, false)
		if err != nil {
			return err
		}
		defer t.Close()
		if len(t.Missing) > 0 {
			return unix.ENOENT
		}
		if t.IsDir() {
			if err := pl.whole(to, t); err != nil {
				return err
			}
		}
		return unix.Renameat(s.Dir(), s.Name, t.Dir(), t.Name)
	})
	if errors.Is(err, unix.EXDEV) {
		return api.Invalid("to", "move %.500q: %.500q is on another file system of the sandbox", from, to).
			WithHint("copy it there and remove it here").WithCause(err)
	}
	if err != nil {
		return pathwalk.FileError("move", from, err)
	}
	return nil
}

func (pl *scope) remove(name string, recursive bool) error {
	err := pl.rights(func() error {
		s, err := pl.change(name, false)
		if err != nil {
			return err
		}
		defer s.Close()
		switch {
		case !s.Exists:
			return unix.ENOENT
		case s.Name == "":
			return api.Invalid("path", "remove %.500q: the root cannot be removed", name)
		case !s.IsDir():
			return unix.Unlinkat(s.Dir(), s.Name, 0)
		case pl.KeepDirs:
			return unix.EISDIR
		}
		if err := pl.whole(name, s); err != nil {
			return err
		}
		if recursive {
			return removeTree(s.Dir(), s.Name, 0)
		}
		return unix.Unlinkat(s.Dir(), s.Name, unix.AT_REMOVEDIR)
	})
	if err != nil {
		return pathwalk.FileError("remove", name, err)
	}
	return nil
}

// maxRemoveDeep bounds the directories that are open while a tree is removed.
const maxRemoveDeep = 1000

// removeTree removes a directory with all that is in it, and follows no link.
func removeTree(at int, name string, deep int) error {
	if deep > maxRemoveDeep {
		return unix.ENAMETOOLONG
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if unix.Unlinkat(at, name, unix.AT_REMOVEDIR) == nil {
			return nil // it is empty, and may not be read
		}
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4<<10)
	for {
		// From the start again: what is removed moves what comes after it.
		if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
			return err
		}
		list, err := dirent.Read(fd, buf)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
		}
		for _, e := range list {
			err := unix.Unlinkat(fd, e.Name, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) && dirent.KindAt(fd, e.Name) == unix.DT_DIR {
				err = removeTree(fd, e.Name, deep+1)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
}

//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// placing carries out one request that says as whom, or within what, files are used. Paths
// are followed here and not by the kernel; what is done at their end is done by the
// kernel, with the rights of that user.
type placing struct {
	*wire.Place
	bounds bounds
	// rights runs what is judged, and makes what makes files.
	rights, makes func(func() error) error
	// user is who keeps what is written, if that is not privileged; nil is the agent.
	user *identity.User
}

// doPlaced carries out what concerns files in a place.
func (a *Agent) doPlaced(p *peer, name string, req *wire.Request) error {
	pl, err := a.placedAt(req)
	if err != nil {
		return err
	}
	defer pl.bounds.close()
	switch req.Op {
	case wire.OpStat:
		info, err := pl.stat(name)
		if err != nil {
			return fileError("describe", name, err)
		}
		return p.JSON(wire.KindReply, wire.FileReply{Info: identity.Named([]api.FileInfo{info})[0]})
	case wire.OpList:
		l, err := pl.list(name, string(req.Cursor), req.Limit)
		if err != nil {
			return fileError("list", name, err)
		}
		l.Files = identity.Named(l.Files)
		return p.JSON(wire.KindReply, l)
	case wire.OpRead:
		f, err := pl.openFile(name)
		if err != nil {
			return fileError("read", name, err)
		}
		return sendFile(p, name, f, req.Offset, req.Length)
	case wire.OpWrite:
		return pl.write(p, name, req)
	case wire.OpMakeDir:
		return done(p, pl.makeDir(name, req.Mode))
	case wire.OpMove:
		return done(p, pl.move(name, string(req.To)))
	case wire.OpRemove:
		return done(p, pl.remove(name, req.Recursive))
	}
	return api.Errorf(api.CodeUnsupported, "operation %.40q is for no user and within no directory", string(req.Op))
}

// placedAt finds the user and the directories of a request.
func (a *Agent) placedAt(req *wire.Request) (*placing, error) {
	pl := &placing{Place: req.Place}
	if pl.User != "" {
		u, err := a.users.Lookup(pl.User)
		if err != nil {
			return nil, err
		}
		pl.rights = func(fn func() error) error { return a.id.With(u, fn) }
		pl.makes = pl.rights
		if !u.Root() {
			pl.user = &u
		}
	} else {
		u, err := a.users.Lookup(req.User)
		if err != nil {
			return nil, err
		}
		pl.rights = func(fn func() error) error { return fn() }
		pl.makes = func(fn func() error) error { return a.id.As(u, fn) }
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
			pl.bounds.close()
			return nil, err
		}
		pl.bounds = append(pl.bounds, b)
	}
	return pl, nil
}

// boundAt is the directory that a request names.
func boundAt(field, name string, fixed bool) (bound, error) {
	if err := checkPath(field, name); err != nil {
		return bound{}, err
	}
	b, err := findBound(name, fixed)
	if err == nil && len(b.names) == 0 {
		b.close()
		return bound{}, api.Invalid(field, "%.500q is the root of the file system, out of which nothing leads", name).WithHint("leave it out, or name a directory in it")
	}
	if err == nil {
		return b, nil
	}
	err = fileError("use", name, err)
	if e, ok := errors.AsType[*api.Error](err); ok {
		e.Field = field
	}
	return bound{}, err
}

// find follows a path to where it leads.
func (pl *placing) find(name string, last bool) (*spot, error) {
	s, err := pl.bounds.find(name, last)
	if errors.Is(err, errLedOut) {
		return nil, pl.refused(api.RuleWithin, name, "leads out of what the request names: %s")
	}
	return s, err
}

// change is find of what is to be changed.
func (pl *placing) change(name string, last bool) (*spot, error) {
	s, err := pl.find(name, last)
	if err == nil && s.bound != nil && s.bound.fixed {
		s.close()
		return nil, pl.refused(api.RuleReadWithin, name, "is in a directory that the request names for reading only, of %s")
	}
	return s, err
}

func (pl *placing) refused(rule, name, why string) error {
	var shownAll []string
	for _, b := range slices.Concat(pl.Within, pl.ReadWithin) {
		shownAll = append(shownAll, shown(string(b)))
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
func (pl *placing) whole(name string, s *spot) error {
	at := s.names()
	for _, b := range pl.bounds {
		if len(at) <= len(b.names) && slices.Equal(at, b.names[:len(at)]) && (b.fixed || len(at) == len(b.names)) {
			rule := api.RuleWithin
			if b.fixed {
				rule = api.RuleReadWithin
			}
			return pl.refused(rule, name, "is a directory that the request names, or holds one: %s")
		}
	}
	return nil
}

func (pl *placing) stat(name string) (info api.FileInfo, err error) {
	err = pl.rights(func() error {
		s, err := pl.find(name, pl.Follow)
		if err != nil {
			return err
		}
		defer s.close()
		if !s.there {
			return unix.ENOENT
		}
		info, err = describeAt(s.dir(), s.name, &s.st)
		return err
	})
	return info, err
}

// describeAt describes what is in an open directory.
func describeAt(at int, name string, st *unix.Stat_t) (api.FileInfo, error) {
	info := describe(name, st)
	if name == "" {
		info.Name = "/"
	}
	if info.Type != api.TypeSymlink {
		return info, nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return info, err
	}
	info.LinkTarget = strings.ToValidUTF8(string(buf[:n]), "\uFFFD")
	return info, nil
}

func (pl *placing) list(name, cursor string, limit int) (l api.FileList, err error) {
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
func (pl *placing) openAt(name string, flags int) (*os.File, error) {
	s, err := pl.find(name, true)
	return s.openFound(err, flags)
}

func (pl *placing) openFile(name string) (f *os.File, err error) {
	err = pl.rights(func() error {
		f, err = pl.openAt(name, unix.O_RDONLY)
		return err
	})
	return f, err
}

// makeDir makes a directory: with those above it and no error where it is there, or
// exactly it.
func (pl *placing) makeDir(name string, mode uint32) error {
	if mode == 0 {
		mode = 0o755
	}
	if mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", mode)
	}
	var s *spot
	err := pl.rights(func() (err error) {
		s, err = pl.change(name, true)
		return err
	})
	if err != nil {
		return fileError("make directory", name, err)
	}
	defer s.close()
	switch {
	case s.isDir() && !pl.Exact:
		return nil
	case s.there:
		return fileError("make directory", name, unix.EEXIST)
	case pl.Exact && len(s.missing) > 0:
		return fileError("make directory", name, unix.ENOENT)
	}
	err = pl.makes(func() error {
		if err := s.parents(); err != nil {
			return err
		}
		return makeExactDir(s.dir(), s.name, mode, pl.Exact)
	})
	if err != nil {
		return fileError("make directory", name, err)
	}
	return nil
}

// makeExactDir makes a directory with exactly that mode. One that somebody else makes
// meanwhile is as good, unless it must be new.
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
	return setMode(fd, mode)
}

func (pl *placing) move(from, to string) error {
	if err := checkPath("to", to); err != nil {
		return err
	}
	err := pl.rights(func() error {
		s, err := pl.change(from, false)
		if err != nil {
			return err
		}
		defer s.close()
		if !s.there {
			return unix.ENOENT
		}
		if s.isDir() {
			if err := pl.whole(from, s); err != nil {
				return err
			}
		}
		t, err := pl.change(to, false)
		if err != nil {
			return err
		}
		defer t.close()
		if len(t.missing) > 0 {
			return unix.ENOENT
		}
		if t.isDir() {
			if err := pl.whole(to, t); err != nil {
				return err
			}
		}
		return unix.Renameat(s.dir(), s.name, t.dir(), t.name)
	})
	if errors.Is(err, unix.EXDEV) {
		return api.Invalid("to", "move %.500q: %.500q is on another file system of the sandbox", from, to).
			WithHint("copy it there and remove it here").WithCause(err)
	}
	if err != nil {
		return fileError("move", from, err)
	}
	return nil
}

func (pl *placing) remove(name string, recursive bool) error {
	err := pl.rights(func() error {
		s, err := pl.change(name, false)
		if err != nil {
			return err
		}
		defer s.close()
		switch {
		case !s.there:
			return unix.ENOENT
		case s.name == "":
			return api.Invalid("path", "remove %.500q: the root cannot be removed", name)
		case !s.isDir():
			return unix.Unlinkat(s.dir(), s.name, 0)
		case pl.KeepDirs:
			return unix.EISDIR
		}
		if err := pl.whole(name, s); err != nil {
			return err
		}
		if recursive {
			return removeTree(s.dir(), s.name, 0)
		}
		return unix.Unlinkat(s.dir(), s.name, unix.AT_REMOVEDIR)
	})
	if err != nil {
		return fileError("remove", name, err)
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
		list, err := readDirents(fd, buf)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
		}
		for _, e := range list {
			err := unix.Unlinkat(fd, e.name, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) && kindAt(fd, e.name) == unix.DT_DIR {
				err = removeTree(fd, e.name, deep+1)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
}

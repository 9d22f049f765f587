//go:build linux

package guest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxPage bounds one page of a list.
const maxPage = 1000

// doFile carries out what concerns files. Paths are those of the sandbox, which
// is the agent's own view; links are followed as the kernel does, but not into
// /proc's, which lead out of the file system and to the agent itself.
func (a *Agent) doFile(p *peer, req *wire.Request) error {
	if err := checkPath("path", string(req.Path)); err != nil {
		return err
	}
	name := string(req.Path)
	var err error
	if req.Place != nil {
		err = a.doPlaced(p, name, req)
	} else {
		err = a.onFile(p, name, req)
	}
	if err != nil && req.Op == wire.OpMove {
		err = a.rules.explain(string(req.To), err)
	}
	return a.rules.explain(name, err)
}

func (a *Agent) onFile(p *peer, name string, req *wire.Request) error {
	switch req.Op {
	case wire.OpStat:
		info, err := lstat(name)
		if err != nil {
			return fileError("describe", name, err)
		}
		return p.JSON(wire.KindReply, wire.FileReply{Info: identity.Named([]api.FileInfo{info})[0]})
	case wire.OpList:
		list, err := list(name, string(req.Cursor), req.Limit)
		if err != nil {
			return err
		}
		list.Files = identity.Named(list.Files)
		return p.JSON(wire.KindReply, list)
	case wire.OpLarge:
		return p.JSON(wire.KindReply, large(name, req.Least))
	case wire.OpRead:
		return read(p, name, req.Offset, req.Length)
	case wire.OpWrite:
		return a.write(p, name, req)
	case wire.OpMakeDir:
		return done(p, a.makeDir(name, req.Mode, req.User))
	case wire.OpMove:
		return done(p, move(name, string(req.To)))
	case wire.OpRemove:
		return done(p, remove(name, req.Recursive))
	case wire.OpTarOut:
		return a.tarOut(p, name, wire.Tar{})
	case wire.OpTarIn:
		return a.tarIn(p, name, req.User, wire.Tar{})
	case wire.OpPack, wire.OpUnpack:
		if req.Tar == nil {
			req.Tar = &wire.Tar{}
		}
		if req.Op == wire.OpPack {
			return a.tarOut(p, name, *req.Tar)
		}
		return a.tarIn(p, name, req.User, *req.Tar)
	}
	return api.Errorf(api.CodeUnsupported, "this agent knows no operation %.40q", string(req.Op))
}

func checkPath(field, name string) error {
	switch {
	case name == "":
		return api.Invalid(field, "the path is empty").WithHint("it is an absolute path inside the sandbox")
	case !strings.HasPrefix(name, "/"):
		return api.Invalid(field, "path %.200q is relative", name).WithHint("it is an absolute path inside the sandbox")
	case strings.IndexByte(name, 0) >= 0:
		return api.Invalid(field, "path %.200q holds a NUL byte", name)
	case len(name) >= unix.PathMax:
		return api.Invalid(field, "a path of %d bytes is longer than the kernel's %d", len(name), unix.PathMax-1)
	}
	return nil
}

// fileError classifies an error of the file system.
func fileError(verb, name string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	code, what := api.CodeInternal, "failed"
	var e syscall.Errno
	if errors.As(err, &e) {
		what = e.Error()
		switch e {
		case unix.ENOENT:
			code, what = api.CodeNotFound, "it does not exist"
		case unix.EEXIST:
			code, what = api.CodeExists, "it exists"
		case unix.ENOTEMPTY:
			code, what = api.CodeState, "the directory is not empty"
		case unix.ENOTDIR:
			code, what = api.CodeInvalid, "a part of the path is not a directory"
		case unix.EISDIR:
			code, what = api.CodeInvalid, "it is a directory"
		case unix.ELOOP:
			code, what = api.CodeInvalid, "there are too many links in it, or one into /proc"
		case unix.ENAMETOOLONG, unix.EINVAL, unix.EXDEV:
			code = api.CodeInvalid
		case unix.EROFS:
			code, what = api.CodeState, "it is read-only in this sandbox"
		case unix.ENOSPC, unix.EDQUOT:
			code, what = api.CodeNoCapacity, "the disk limit of this sandbox is reached"
		case unix.EFBIG:
			code = api.CodeTooLarge
		case unix.EACCES, unix.EPERM, unix.EBUSY, unix.ETXTBSY, unix.ENXIO, unix.ENODEV:
			code = api.CodeState
		}
	}
	ce := api.Errorf(code, "%s %.500q: %s", verb, name, what).WithCause(err)
	ce.Errno = unix.ErrnoName(e)
	if code == api.CodeInvalid {
		ce.Field = "path"
	}
	return ce
}

// open opens a file without following /proc's links and without waiting for a
// FIFO's other end.
func open(name string, flags int, mode uint32) (*os.File, error) {
	return openAt(unix.AT_FDCWD, name, flags, mode)
}

// openAt is open of a name in an open directory.
func openAt(at int, name string, flags int, mode uint32) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := unix.Openat2(at, name, how)
	if err == unix.ENOSYS {
		fd, err = unix.Openat(at, name, int(how.Flags), mode)
	}
	if err != nil {
		return nil, err
	}
	if err := notOwn(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// notOwn refuses what /proc shows of the agent, and what can be written there,
// and what nobody may enter.
func notOwn(fd int) error {
	var at unix.Stat_t
	if err := unix.Fstat(fd, &at); err == nil && noAccess(&at) {
		return unix.EACCES
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	where, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	own := "/proc/" + strconv.Itoa(os.Getpid())
	if flags&unix.O_ACCMODE != unix.O_RDONLY || where == own || strings.HasPrefix(where, own+"/") {
		return unix.EACCES
	}
	return nil
}

// describe makes the FileInfo of a file.
func describe(name string, st *unix.Stat_t) api.FileInfo {
	info := api.FileInfo{
		Name: name, Size: st.Size, Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
	if !utf8.ValidString(name) {
		info.Name, info.NameBytes = strings.ToValidUTF8(name, "\uFFFD"), []byte(name)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Type = api.TypeFile
	case unix.S_IFDIR:
		info.Type = api.TypeDir
	case unix.S_IFLNK:
		info.Type = api.TypeSymlink
	default:
		info.Type = api.TypeOther
	}
	return info
}

func lstat(name string) (api.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return api.FileInfo{}, err
	}
	info := describe(path.Base(name), &st)
	if info.Type == api.TypeSymlink {
		target, err := os.Readlink(name)
		if err != nil {
			return api.FileInfo{}, err
		}
		info.LinkTarget = strings.ToValidUTF8(target, "\uFFFD")
	}
	return info, nil
}

// list describes one page of a directory.
func list(name, cursor string, limit int) (api.FileList, error) {
	d, err := open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return api.FileList{}, fileError("list", name, err)
	}
	defer d.Close()
	return listOpen(d, name, cursor, limit)
}

// listOpen describes one page of an open directory. It holds one page of names, however
// large the directory is.
func listOpen(d *os.File, name, cursor string, limit int) (api.FileList, error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return api.FileList{}, api.Invalid("cursor", "cursor %.80q is not one that a list has returned", cursor)
	}
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	var page []string
	more := false
	for {
		names, err := d.Readdirnames(512)
		for _, n := range names {
			if n <= string(after) {
				continue
			}
			i, _ := slices.BinarySearch(page, n)
			if i == limit {
				more = true
				continue
			}
			page = slices.Insert(page, i, n)
			if len(page) > limit {
				page, more = page[:limit], true
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return api.FileList{}, fileError("list", name, err)
		}
	}
	out := api.FileList{Files: make([]api.FileInfo, 0, len(page))}
	for _, n := range page {
		var st unix.Stat_t
		err := unix.Fstatat(int(d.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW)
		var info api.FileInfo
		if err == nil {
			info, err = describeAt(int(d.Fd()), n, &st)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			continue // removed meanwhile, or replaced
		}
		if err != nil {
			return api.FileList{}, fileError("describe", n, err)
		}
		out.Files = append(out.Files, info)
	}
	if more {
		out.Next = base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1]))
	}
	return out, nil
}

// read sends a file's bytes.
func read(p *peer, name string, offset, length int64) error {
	f, err := open(name, unix.O_RDONLY, 0)
	if err != nil {
		return fileError("read", name, err)
	}
	return sendFile(p, name, f, offset, length)
}

// sendFile sends the bytes of an open file, and closes it.
func sendFile(p *peer, name string, f *os.File, offset, length int64) error {
	defer f.Close()
	if offset < 0 {
		return api.Invalid("offset", "offset %d is negative", offset)
	}
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil {
		return fileError("read", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return fileError("read", name, unix.EISDIR)
	default:
		return api.Invalid("path", "read %.500q: it is neither a file nor a link to one", name)
	}
	if err := p.JSON(wire.KindReply, wire.FileReply{Info: describe(path.Base(name), &st)}); err != nil {
		return err
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return fileError("read", name, err)
		}
	}
	var r io.Reader = f
	if length >= 0 {
		r = io.LimitReader(f, length)
	}
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		if werr := p.Bytes(wire.KindData, buf[:n]); werr != nil {
			return werr
		}
		if err == io.EOF {
			return p.End()
		}
		if err != nil {
			return fileError("read", name, err)
		}
	}
}

func fstat(f *os.File, st *unix.Stat_t) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Fstat(int(fd), st) })
	return errors.Join(err, serr)
}

// dataFrames reads the bytes that the host sends, up to its end mark. A stream
// that ends without one was given up.
type dataFrames struct {
	p    *peer
	rest []byte
	done bool
}

func (d *dataFrames) Read(b []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.done {
			return 0, io.EOF
		}
		kind, payload, err := d.p.Next()
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: %w", errGivenUp, err)
		case kind == wire.KindEnd:
			d.done = true
		case kind != wire.KindData:
			return 0, api.Errorf(api.CodeInvalid, "kind %q stands among the bytes of a file", byte(kind))
		default:
			d.rest = payload
		}
	}
	n := copy(b, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

var errGivenUp = errors.New("the transfer was given up")

// makeDir makes a directory and its missing parents.
func (a *Agent) makeDir(name string, mode uint32, owner string) error {
	u, err := a.users.Lookup(owner)
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	if mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", mode)
	}
	if err := a.id.As(u, func() error { return mkdirAll(name, mode) }); err != nil {
		return fileError("make directory", name, err)
	}
	return nil
}

// mkdirAll makes a directory with exactly that mode, and missing parents.
func mkdirAll(name string, mode uint32) error {
	err := unix.Mkdir(name, mode&0o777)
	switch err {
	case nil:
		if mode&^0o022 != mode || mode > 0o777 {
			return setModeAt(unix.AT_FDCWD, name, mode)
		}
		return nil
	case unix.EEXIST:
		var st unix.Stat_t
		if serr := unix.Stat(name, &st); serr != nil {
			return serr
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return err
		}
		return nil
	case unix.ENOENT:
		parent := path.Dir(strings.TrimRight(name, "/"))
		if parent == name || parent == "/" {
			return err
		}
		if perr := mkdirAll(parent, 0o755); perr != nil {
			return perr
		}
		return mkdirAll(name, mode)
	}
	return err
}

func move(from, to string) error {
	if err := checkPath("to", to); err != nil {
		return err
	}
	if err := unix.Rename(from, to); err != nil {
		if err == unix.EXDEV {
			return api.Invalid("to", "move %.500q: %.500q is on another file system of the sandbox", from, to).
				WithHint("copy it there and remove it here").WithCause(err)
		}
		return fileError("move", from, err)
	}
	return nil
}

func remove(name string, recursive bool) error {
	if path.Clean(name) == "/" {
		return api.Invalid("path", "remove %.500q: the root cannot be removed", name)
	}
	if !recursive {
		if err := os.Remove(name); err != nil {
			return fileError("remove", name, err)
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return fileError("remove", name, err)
	}
	if err := os.RemoveAll(name); err != nil {
		return fileError("remove", name, err)
	}
	return nil
}

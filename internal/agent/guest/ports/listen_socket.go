//go:build linux

package ports

import (
	"errors"
	"net"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxSocketPath is the longest path that the kernel takes in a connect.
const maxSocketPath = 107

// socketFile is the file of a listener's socket. It may be nil.
type socketFile struct {
	name string   // as it was asked for
	dir  *os.File // a path only
	base string
	dev  uint64
	ino  uint64
}

// path is empty without a file.
func (f *socketFile) path() string {
	if f == nil {
		return ""
	}
	return f.name
}

// at is a name of the file that leads over no directory which could be changed.
func (f *socketFile) at() string { return pathwalk.ProcFD(int(f.dir.Fd())) + "/" + f.base }

// remove takes the file away, if it is the one that was made.
func (f *socketFile) remove() {
	if f != nil {
		f.unlink()
		f.dir.Close()
	}
}

func (f *socketFile) unlink() {
	var st unix.Stat_t
	if unix.Fstatat(int(f.dir.Fd()), f.base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == f.dev && st.Ino == f.ino {
		_ = unix.Unlinkat(int(f.dir.Fd()), f.base, 0)
	}
}

// bindSocket listens at a socket. It makes missing directories, which belong to root and which all
// users may enter. It replaces a socket without a listener; any other file at the path is
// unix.EADDRINUSE.
func (ls *Listeners) bindSocket(o *wire.Listen) (net.Listener, *socketFile, error) {
	name := string(o.Socket)
	if err := pathwalk.CheckPath("listen", name); err != nil {
		return nil, nil, err
	}
	if path.Clean(name) != name || len(name) > maxSocketPath || name == "/" {
		return nil, nil, api.Invalid("listen", "%.200q is no path of a socket", name).
			WithHint("absolute, in its shortest form, of at most %d bytes", maxSocketPath)
	}
	owner, mode := o.User, uint32(0o600)
	if owner == "" {
		mode = 0o666
		if ls.users.Self == nil {
			owner = "0"
		}
	}
	u, err := ls.users.Lookup(owner)
	if err != nil {
		return nil, nil, err
	}
	f, err := ls.socketDir(name, o.Outside)
	if err != nil {
		return nil, nil, ls.rules.Explain(name, pathwalk.FileError("listen at", name, err))
	}
	ln, err := ls.bindAt(f, u, mode)
	if err == nil {
		return ln, f, nil
	}
	f.dir.Close()
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, nil, err
	}
	return nil, nil, ls.rules.Explain(name, pathwalk.FileError("listen at", name, err))
}

// socketDir opens the directory of a socket, and makes it where it is missing.
func (ls *Listeners) socketDir(name string, outside []api.Bytes) (*socketFile, error) {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	found, err := openJudged(dir, outside)
	if errors.Is(err, unix.ENOENT) {
		u := identity.User{}
		if ls.users.Self != nil {
			u = *ls.users.Self
		}
		if err := judgeAbove(dir, outside); err != nil {
			return nil, err
		}
		if err := ls.id.As(u, func() error { return pathwalk.MkdirAll(dir, 0o755) }); err != nil {
			return nil, err
		}
		found, err = openJudged(dir, outside)
	}
	if err != nil {
		return nil, err
	}
	return &socketFile{name: name, base: base, dir: found}, nil
}

// judgeAbove judges the directory in which missing ones would be made.
func judgeAbove(dir string, outside []api.Bytes) error {
	for dir != "/" {
		dir = path.Dir(dir)
		f, err := openJudged(dir, outside)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			f.Close()
		}
		return err
	}
	return nil
}

// openJudged opens a directory as a path only, if a socket may be in it.
func openJudged(name string, outside []api.Bytes) (*os.File, error) {
	dir, err := openDirPath(name)
	if err != nil {
		return nil, err
	}
	if err := judgeDir(dir, outside); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// openDirPath opens a directory as a path only.
func openDirPath(name string) (*os.File, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == unix.ENOSYS {
		fd, err = unix.Open(name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// judgeDir refuses a directory that others than this sandbox see: who has the file of
// a socket can connect to it, from whatever network. And one that is no place for files.
func judgeDir(dir *os.File, outside []api.Bytes) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return err
	}
	if pathwalk.IsMask(&st) || fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC {
		return unix.EACCES
	}
	where, err := os.Readlink(pathwalk.ProcFD(int(dir.Fd())))
	if err != nil {
		return err
	}
	for _, o := range outside {
		real := string(o)
		if f, err := openDirPath(real); err == nil {
			if to, err := os.Readlink(pathwalk.ProcFD(int(f.Fd()))); err == nil {
				real = to
			}
			f.Close()
		}
		if where == real || strings.HasPrefix(where, real+"/") {
			return api.Invalid("listen", "a socket cannot be in %.200q, which the sandbox shares with others", string(o)).
				WithHint("name a path outside of workspaces and mounts, such as /run/NAME.sock")
		}
	}
	return nil
}

// bindAt makes the socket, which accepts no connection before it has its mode.
func (ls *Listeners) bindAt(f *socketFile, u identity.User, mode uint32) (net.Listener, error) {
	fd, err := ls.socket(unix.SOCK_STREAM | unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	s := os.NewFile(uintptr(fd), f.name)
	defer s.Close() // FileListener has its own copy
	bind := func() error { return unix.Bind(fd, &unix.SockaddrUnix{Name: f.at()}) }
	err = ls.id.As(u, bind)
	if errors.Is(err, unix.EADDRINUSE) && f.stale() {
		if err := unix.Unlinkat(int(f.dir.Fd()), f.base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		err = ls.id.As(u, bind)
	}
	if err != nil {
		return nil, err
	}
	if err = f.own(mode); err == nil {
		err = unix.Listen(fd, Backlog)
	}
	var ln net.Listener
	if err == nil {
		ln, err = net.FileListener(s)
	}
	if err != nil {
		f.unlink()
	}
	return ln, err
}

// own gives the socket its mode, and notes which file it is. What may have been put
// in its place meanwhile is a socket too, or is not touched.
func (f *socketFile) own(mode uint32) error {
	fd, err := unix.Openat(int(f.dir.Fd()), f.base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return unix.EADDRINUSE
	}
	f.dev, f.ino = st.Dev, st.Ino
	return pathwalk.SetMode(fd, mode)
}

// stale reports a socket without a listener.
func (f *socketFile) stale() bool {
	var st unix.Stat_t
	if unix.Fstatat(int(f.dir.Fd()), f.base, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: f.at()}), unix.ECONNREFUSED)
}

// peerOf is who connected to a socket; nil is not known.
func peerOf(conn net.Conn) *wire.Peer {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var peer *unix.Ucred
	err = raw.Control(func(fd uintptr) { peer, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || peer == nil {
		return nil
	}
	return &wire.Peer{UID: peer.Uid, PID: int(peer.Pid)}
}

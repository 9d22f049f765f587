//go:build linux

package fsop

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/confine"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxWatchers bounds the open files that are looked at for watches. With more, there may be one.
const maxWatchers = 1 << 14

// hostUnpack answers whether the host can unpack into the directory name, and which user owns the files. Before an
// atomic import it recovers from imports that were killed there.
func (fo *Files) hostUnpack(p *session.Call, name, owner string, o wire.Tar) error {
	u, err := fo.ownerOf(owner, o)
	if err != nil {
		return err
	}
	return p.JSON(wire.KindReply, wire.HostUnpack{Allowed: fo.hostMayUnpack(name, o), UID: u.UID, GID: u.GID})
}

func (fo *Files) hostMayUnpack(name string, o wire.Tar) bool {
	if watched() {
		return false // the host's changes are no events in this kernel
	}
	d, err := pathwalk.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return true
	}
	if err != nil {
		return false // the import says what is wrong
	}
	defer d.Close()
	if below, err := mountsIn(d); err != nil || len(below) > 0 {
		return false
	}
	if o.Atomic || o.Clear {
		recoverImports(d, fo.asOwner)
	}
	return true
}

// watched says whether a process of the sandbox can be watching files.
func watched() bool {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	left := maxWatchers
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := "/proc/" + p.Name() + "/fd"
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return true
		}
		for _, f := range files {
			to, err := os.Readlink(dir + "/" + f.Name())
			if left--; left < 0 || err == nil && strings.Contains(to, "notify") {
				return true
			}
		}
	}
	return false
}

// hostedCaps are the capabilities that unpacking needs: those over files, and to become their owner.
const hostedCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID

// HostMain is the whole life of a process that unpacks a tar on the host. Descriptor 3 is a directory; a
// wire.UnpackJob and the tar come as frames from descriptor 0, and the api.TarReport, or the api.Error, goes to
// descriptor 1. It returns the status to exit with.
func HostMain() int {
	const dirFD = 3
	unix.CloseOnExec(dirFD)
	out := wire.NewWriter(os.Stdout)
	report, err := hosted(os.NewFile(dirFD, "directory"), wire.NewReader(os.Stdin))
	if err == nil {
		err = out.JSON(wire.KindReply, report)
	} else {
		e, ok := errors.AsType[*api.Error](err)
		if !ok {
			e = api.Errorf(api.CodeInternal, "unpack: %w", err)
		}
		err = out.JSON(wire.KindFail, e)
	}
	if err != nil {
		return 1
	}
	return 0
}

func hosted(root *os.File, in *wire.Reader) (report api.TarReport, err error) {
	id := identity.Identity{Privileged: os.Geteuid() == 0, UserNS: -1}
	if err := confine.ToDirectory(int(root.Fd()), hostedCaps); err != nil {
		return report, err
	}
	unix.Umask(0o022)
	kind, payload, err := in.Next()
	if err != nil || kind != wire.KindRequest {
		return report, fmt.Errorf("read job: kind %q: %w", byte(kind), err)
	}
	job, err := wire.Decode[wire.UnpackJob](payload)
	if err != nil {
		return report, fmt.Errorf("read job: %w", err)
	}
	as := func(fn func() error) error { return id.As(identity.User{UID: job.UID, GID: job.GID}, fn) }
	t := &hostTarget{root: pathwalk.DirWalk{Top: root}}
	defer t.root.Close()
	var d *os.File
	if err := as(func() (err error) { d, err = t.open(string(job.Dir), string(job.Name)); return err }); err != nil {
		return report, errors.Join(pathwalk.FileError("unpack into", string(job.Name), err), t.undo())
	}
	defer d.Close()
	x := newUnpacker(string(job.Name), job.Tar)
	x.hosted, x.setMode = true, pathwalk.SetModeInMount
	if err := x.unpack(d, newReadAhead(session.NewData(in.Next)), as); err != nil {
		if x.moves() {
			_ = t.undo()
		}
		return report, err
	}
	return x.report, nil
}

// hostTarget opens the directory to unpack in, below one that is open, through no symlink.
type hostTarget struct {
	root pathwalk.DirWalk
	made madeDirs
}

// open opens dir, which is made if it is missing. Its name is for errors.
func (t *hostTarget) open(dir, name string) (*os.File, error) {
	at := ""
	t.root.Mkdir = func(fd int, base string) error {
		err := unix.Mkdirat(fd, base, 0o755)
		if err == nil {
			t.made = append(t.made, at)
		}
		return err
	}
	fd, err := t.root.Enter(".")
	for part := range strings.SplitSeq(dir, "/") {
		if part != "" && err == nil {
			at = path.Join(at, part)
			fd, err = t.root.Enter(at)
		}
	}
	t.root.Mkdir = nil
	if err != nil {
		return nil, err
	}
	if fd, err = unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// undo removes the directories that open has made.
func (t *hostTarget) undo() error {
	for i := len(t.made) - 1; i >= 0; i-- {
		at, err := t.root.Enter(path.Dir(t.made[i]))
		if err == nil {
			err = unix.Unlinkat(at, path.Base(t.made[i]), unix.AT_REMOVEDIR)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

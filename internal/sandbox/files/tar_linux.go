package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// overflowID is the number that the owners of a file have inside if they have none of their own there.
const overflowID = 65534

// packHost packs a directory of this machine that a sandbox has at a path, past the sandbox. It returns false
// if the agent has to pack it, and has written nothing then.
func packHost(s Sandbox, name string, o api.TarOutOptions, w io.Writer) (report api.TarReport, packed bool, err error) {
	dir, rel, ok := hostDir(s, api.FilePlace{Path: name})
	if !ok {
		return report, false, nil
	}
	f, err := openBelow(dir, rel)
	if err != nil {
		return report, false, nil //nolint:nilerr // it is a file or behind a link, or the agent says what is wrong
	}
	defer f.Close()
	owner, ok := ownersOf(dir)
	if !ok {
		return report, false, nil
	}
	opts := pack.Options{Exclude: archive.NewPathSet(o.Exclude), CopyHardLinks: o.CopyHardLinks, Owner: owner}
	if !o.KeepLinks {
		opts.Roots = []string{path.Clean(name)}
	}
	report, err = pack.Write(w, int(f.Fd()), path.Base(name), opts)
	if _, ok := errors.AsType[*api.Error](err); err != nil && !ok {
		err = fmt.Errorf("write tar: %w", err)
	}
	return report, true, err
}

// ownersOf returns how the owners of files in a mounted directory are shown inside, and false if that is not
// known: for root's sandboxes a directory of another user is mounted with other owners, if its filesystem can.
func ownersOf(dir workspace.Attached) (func(uid, gid uint32) (int, int), bool) {
	top, err := openBelow(dir, "")
	if err != nil {
		return nil, false
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return nil, false
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if uid == 0 {
		return nil, st.Uid == 0
	}
	shown := func(id, own uint32) int {
		if id == own {
			return 0
		}
		return overflowID
	}
	return func(u, g uint32) (int, int) { return shown(u, uid), shown(g, gid) }, true
}

// minHostUnpack is from how many bytes on a tar is unpacked on the host: less is not worth another process.
const minHostUnpack = 256 << 10

// unpack unpacks a tar. One whose directory is of this machine is unpacked by a process of this machine, past the
// sandbox, if nothing inside can tell the difference.
func (f *Files) unpack(ctx context.Context, s Sandbox, c *agent.Client, name string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	if f.Unpacker == nil || !onHost(s, name) {
		return c.TarIn(ctx, name, o, r)
	}
	r, large := atLeast(r, minHostUnpack)
	if !large {
		return c.TarIn(ctx, name, o, r)
	}
	t, ok, err := f.hostTarget(ctx, s, c, name, o)
	if err != nil {
		return api.TarReport{}, err
	}
	if !ok {
		return c.TarIn(ctx, name, o, r)
	}
	defer t.Root.Close()
	ctx, stop := context.WithCancel(ctx)
	var ends sync.WaitGroup
	defer ends.Wait()
	ends.Go(func() {
		select {
		case <-s.Ended():
			stop()
		case <-ctx.Done():
		}
	})
	defer stop()
	report, err := agent.UnpackOnHost(ctx, t, o, r)
	if errors.Is(err, agent.ErrNotStarted) { // some machines execute no file that has no name
		return c.TarIn(ctx, name, o, r)
	}
	select {
	case <-s.Ended():
		if err != nil {
			err = api.Errorf(api.CodeUnavailable, "the sandbox ended during the import").WithCause(err)
		}
	default:
	}
	return report, err
}

// onHost says whether a path inside lies in a directory of this machine that may be written to from here.
func onHost(s Sandbox, name string) bool {
	dir, _, ok := hostDir(s, api.FilePlace{Path: name})
	return ok && !dir.ReadOnly
}

// hostTarget opens the directory of this machine that a path inside lies in. It returns false if the agent has to
// unpack there.
func (f *Files) hostTarget(ctx context.Context, s Sandbox, c *agent.Client, name string, o api.TarInOptions) (t agent.HostTarget, ok bool, err error) {
	dir, rel, ok := hostDir(s, api.FilePlace{Path: name})
	if !ok || dir.ReadOnly || !throughDirs(dir, rel) {
		return t, false, nil
	}
	if _, ok := ownersOf(dir); !ok {
		return t, false, nil
	}
	program, err := f.Unpacker()
	if err != nil {
		return t, false, nil //nolint:nilerr // the agent can do it
	}
	terms, err := c.HostUnpack(ctx, name, o)
	if err != nil || !terms.Allowed || terms.UID >= agent.UID || terms.GID >= agent.UID {
		return t, false, err
	}
	if os.Geteuid() != 0 && (terms.UID != 0 || terms.GID != 0 || o.Owner == api.OwnerKeep) {
		return t, false, nil // this user owns what root inside does, and nothing else
	}
	top, err := openBelow(dir, "")
	if err != nil {
		return t, false, nil //nolint:nilerr // the agent says what is wrong
	}
	defer top.Close()
	root, err := withoutMounts(top, dir.Path)
	if err != nil {
		return t, false, nil //nolint:nilerr // the agent can do it
	}
	return agent.HostTarget{Program: program, Root: root, Dir: rel, Name: path.Clean(name), UID: terms.UID, GID: terms.GID}, true, nil
}

// throughDirs says whether what exists of a path below a directory are directories. Where a symlink leads, the
// agent knows.
func throughDirs(dir workspace.Attached, rel string) bool {
	for {
		f, err := openBelow(dir, rel)
		if err == nil {
			f.Close()
			return true
		}
		if !errors.Is(err, unix.ENOENT) || rel == "" {
			return false
		}
		if rel = path.Dir(rel); rel == "." {
			rel = ""
		}
	}
}

// withoutMounts opens a directory again, without what is mounted below it: the sandbox does not see that either.
// The kernel does that for a privileged process; for another, there must be no such mount.
func withoutMounts(top *os.File, name string) (*os.File, error) {
	fd, err := unix.OpenTree(int(top.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		if workspace.MountsBelow(name) > 0 {
			return nil, fmt.Errorf("open directory without its mounts: %w", err)
		}
		fd = int(top.Fd())
	} else {
		defer unix.Close(fd)
	}
	fd, err = unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

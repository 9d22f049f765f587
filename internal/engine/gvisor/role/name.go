//go:build linux

package role

import (
	"encoding/binary"
	"path"
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// maxLinks is how many symlinks that lead nowhere are followed.
const maxLinks = 8

// name is the absolute path, from the root of the task's mounts, of what a call
// was about, with what is missing of it at its end.
func (g *guard) name(t *kernel.Task, p place, args arch.SyscallArguments) (string, bool) {
	var asked string
	var ok bool
	switch {
	case p.path < 0:
		ok = true
	case p.socket:
		asked, ok = socketPath(t, args[p.path].Pointer(), args[p.path+1].Uint())
	default:
		asked, ok = pathArgument(t, args[p.path].Pointer())
	}
	if !ok || asked == "" && p.dir < 0 {
		return "", false
	}
	root := t.FSContext().RootDirectory()
	if !root.Ok() {
		return "", false
	}
	defer root.DecRef(t)
	start := root // of an absolute path
	if !strings.HasPrefix(asked, "/") {
		if start = startOf(t, p, args); !start.Ok() {
			return "", false
		}
		defer start.DecRef(t)
	}
	w := walk{
		t: t, vfs: t.Kernel().VFS(), root: root, start: start,
		// What a rule denies is no way for the task, and is one for the guard.
		creds: auth.NewRootCredentials(t.Kernel().RootUserNamespace()),
	}
	return w.name(asked, p.follow != nil && p.follow(args))
}

// startOf is where a relative path begins; the caller lets go of it.
func startOf(t *kernel.Task, p place, args arch.SyscallArguments) vfs.VirtualDentry {
	dir := int32(linux.AT_FDCWD)
	if p.dir >= 0 {
		dir = args[p.dir].Int()
	}
	if dir == linux.AT_FDCWD {
		return t.FSContext().WorkingDirectory()
	}
	f := t.GetFile(dir)
	if f == nil {
		return vfs.VirtualDentry{}
	}
	defer f.DecRef(t)
	vd := f.VirtualDentry()
	vd.IncRef()
	return vd
}

// pathArgument is a path in the task's memory; a null pointer is the empty path.
func pathArgument(t *kernel.Task, addr hostarch.Addr) (string, bool) {
	if addr == 0 {
		return "", true
	}
	s, err := t.CopyInString(addr, linux.PATH_MAX)
	return s, err == nil
}

// socketPath is the path of a socket's address.
func socketPath(t *kernel.Task, addr hostarch.Addr, size uint32) (string, bool) {
	b := make([]byte, min(size, 2+linux.UnixPathMax))
	if _, err := t.CopyInBytes(addr, b); err != nil || len(b) < 3 || binary.NativeEndian.Uint16(b) != linux.AF_UNIX {
		return "", false
	}
	s, _, _ := strings.Cut(string(b[2:]), "\x00")
	return s, s != "" // an abstract one is no file
}

// walk looks for files as the task would.
type walk struct {
	t           *kernel.Task
	vfs         *vfs.VirtualFilesystem
	creds       *auth.Credentials
	root, start vfs.VirtualDentry
}

func (w walk) operation(name string, follow bool) *vfs.PathOperation {
	pop := vfs.PathOperation{Root: w.root, Start: w.start, Path: fspath.Parse(name), FollowFinalSymlink: follow}
	if pop.Path.Absolute {
		pop.Start = w.root
	}
	return &pop
}

func (w walk) name(asked string, follow bool) (string, bool) {
	for range maxLinks {
		name, missing, ok := w.deepest(asked, follow)
		if !ok || !follow || missing != 1 {
			return name, ok
		}
		// The last part is missing, or a symlink to what is.
		target, err := w.vfs.ReadlinkAt(w.t, w.creds, w.operation(asked, false))
		if err != nil {
			return name, ok
		}
		if strings.HasPrefix(target, "/") {
			asked = target
		} else {
			asked = asked[:strings.LastIndexByte(strings.TrimRight(asked, "/"), '/')+1] + target
		}
		if len(asked) > linux.PATH_MAX {
			return "", false
		}
	}
	return "", false
}

// deepest finds as much of a path as there is, and how many parts of it are not.
func (w walk) deepest(asked string, follow bool) (name string, missing int, ok bool) {
	lead := ""
	if strings.HasPrefix(asked, "/") {
		lead = "/"
	}
	parts := strings.FieldsFunc(asked, func(r rune) bool { return r == '/' })
	var found vfs.VirtualDentry
	get := func(n int) bool {
		vd, err := w.vfs.GetDentryAt(w.t, w.creds, w.operation(lead+strings.Join(parts[:n], "/"), follow || n < len(parts)), &vfs.GetDentryOptions{})
		if err != nil {
			return false
		}
		if found.Ok() {
			found.DecRef(w.t)
		}
		found = vd
		return true
	}
	if !get(len(parts)) {
		// What is below something that is missing is missing.
		missing = len(parts) - (sort.Search(len(parts), func(n int) bool { return !get(n) }) - 1)
	}
	if missing > len(parts) || !found.Ok() {
		return "", 0, false
	}
	defer found.DecRef(w.t)
	ns := w.t.MountNamespace().Root(w.t)
	if !ns.Ok() {
		return "", 0, false
	}
	defer ns.DecRef(w.t)
	at, err := w.vfs.PathnameWithDeleted(w.t, ns, found)
	if err != nil {
		return "", 0, false
	}
	return path.Join(append([]string{at}, parts[len(parts)-missing:]...)...), missing, true
}

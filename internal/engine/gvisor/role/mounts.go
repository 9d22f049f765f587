//go:build linux

package role

import (
	"math/bits"
	"strings"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroupfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/fsconfigfd"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// mounts keeps what is mounted in the first mount namespace of a sandbox, which
// its agent has, as it is. Rules on paths and covered paths are mounts of that namespace.
// A program may make a user namespace and mount in a mount namespace of its own.
// There gVisor lets it do three things that Linux does not, and those this answers
// itself:
//
//   - An overlay takes a copy of the mount of each layer without the mounts below
//     it, also where those are locked (see layered).
//   - A mount call can name a mount point of another namespace, by a descriptor.
//   - A mount point of another namespace can be renamed and removed, which takes its
//     mount away. Linux does that too, and does not have to keep a rule by it.
//
// It is used by every task of a sentry at once.
type mounts struct {
	// first is the namespace of the agent. It has no reference: see hold.
	first atomic.Pointer[vfs.MountNamespace]
	// tell, when it is not nil, is called for each layer that is refused.
	tell func(t *kernel.Task, layer vfs.VirtualDentry)
	// registered is 1 when the type layered is known to the sentry.
	registered atomic.Bool
}

// watch puts m behind the calls of a table.
func (m *mounts) watch(table *kernel.SyscallTable) {
	own := map[string]func(*kernel.Task, arch.SyscallArguments) error{
		"rename":   func(t *kernel.Task, a arch.SyscallArguments) error { return m.rename(t, inCWD(a, 0), inCWD(a, 1), 0) },
		"renameat": func(t *kernel.Task, a arch.SyscallArguments) error { return m.rename(t, inDir(a, 0), inDir(a, 2), 0) },
		"renameat2": func(t *kernel.Task, a arch.SyscallArguments) error {
			return m.rename(t, inDir(a, 0), inDir(a, 2), a[4].Uint())
		},
		"rmdir":  func(t *kernel.Task, a arch.SyscallArguments) error { return m.remove(t, inCWD(a, 0), true) },
		"unlink": func(t *kernel.Task, a arch.SyscallArguments) error { return m.remove(t, inCWD(a, 0), false) },
		"unlinkat": func(t *kernel.Task, a arch.SyscallArguments) error {
			if a[2].Uint()&^linux.AT_REMOVEDIR != 0 {
				return linuxerr.EINVAL
			}
			return m.remove(t, inDir(a, 0), a[2].Uint()&linux.AT_REMOVEDIR != 0)
		},
	}
	for nr, sc := range table.Table {
		do := sc.Fn
		switch sc.Name {
		case "mount":
			sc.Fn = m.mount(do)
		case "fsopen":
			sc.Fn = m.fsopen
		default:
			f, ok := own[sc.Name]
			if !ok {
				continue
			}
			sc.Fn = func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				// In the first namespace gVisor's own check is the right one.
				if t.MountNamespace() == m.namespace(t) {
					return do(t, sysno, args)
				}
				return 0, nil, f(t, args)
			}
		}
		table.Table[nr] = sc
	}
	table.Init()
}

// namespace is the first mount namespace, to be compared only.
func (m *mounts) namespace(t *kernel.Task) *vfs.MountNamespace {
	ns := m.first.Load()
	if ns == nil {
		// The agent never leaves its namespace.
		ns = t.Kernel().GlobalInit().Leader().MountNamespace()
		m.first.Store(ns)
	}
	return ns
}

// hold is the first mount namespace with a reference; ok is false when the sandbox
// is about to end.
func (m *mounts) hold(t *kernel.Task) (ns *vfs.MountNamespace, ok bool) {
	ns = m.namespace(t)
	if ns == nil || !ns.TryIncRef() {
		return nil, false
	}
	return ns, true
}

// foreign is whether vd is seen in the first mount namespace, which is not t's.
func (m *mounts) foreign(t *kernel.Task, vd vfs.VirtualDentry) (bool, error) {
	if t.MountNamespace() == m.namespace(t) {
		return false, nil
	}
	ns, ok := m.hold(t)
	if !ok {
		return true, nil
	}
	defer ns.DecRef(t)
	root := ns.Root(t)
	defer root.DecRef(t)
	name, err := t.Kernel().VFS().PathnameReachable(t, root, vd)
	return name != "", err
}

// named is a path of a call: a directory's descriptor, and where the path is.
type named struct {
	dir  int32
	path hostarch.Addr
}

func inCWD(a arch.SyscallArguments, path int) named { return named{linux.AT_FDCWD, a[path].Pointer()} }
func inDir(a arch.SyscallArguments, dir int) named  { return named{a[dir].Int(), a[dir+1].Pointer()} }

// operation reads a path once. The caller calls release when there is no error.
func (n named) operation(t *kernel.Task, follow bool) (pop vfs.PathOperation, release func(), err error) {
	s, err := t.CopyInString(n.path, linux.PATH_MAX)
	if err != nil {
		return vfs.PathOperation{}, nil, err
	}
	if s == "" {
		return vfs.PathOperation{}, nil, linuxerr.ENOENT
	}
	root := t.FSContext().RootDirectory()
	start := root
	start.IncRef()
	p := fspath.Parse(s)
	if !p.Absolute {
		start.DecRef(t)
		if start, err = directory(t, n.dir); err != nil {
			root.DecRef(t)
			return vfs.PathOperation{}, nil, err
		}
	}
	release = func() {
		start.DecRef(t)
		root.DecRef(t)
	}
	return vfs.PathOperation{Root: root, Start: start, Path: p, FollowFinalSymlink: follow}, release, nil
}

// directory is what a descriptor is of, with a reference.
func directory(t *kernel.Task, fd int32) (vfs.VirtualDentry, error) {
	if fd == linux.AT_FDCWD {
		return t.FSContext().WorkingDirectory(), nil
	}
	f := t.GetFile(fd)
	if f == nil {
		return vfs.VirtualDentry{}, linuxerr.EBADF
	}
	defer f.DecRef(t)
	vd := f.VirtualDentry()
	vd.IncRef()
	return vd, nil
}

// rename renames for a task that is not in the first namespace.
func (m *mounts) rename(t *kernel.Task, old, to named, flags uint32) error {
	return m.change(t, func(ctx kernelContext) error {
		pop, release, err := old.operation(t, false)
		if err != nil {
			return err
		}
		defer release()
		next, releaseNext, err := to.operation(t, false)
		if err != nil {
			return err
		}
		defer releaseNext()
		if mountPoint(t, pop) || mountPoint(t, next) {
			return linuxerr.EBUSY
		}
		return t.Kernel().VFS().RenameAt(ctx, t.Credentials(), &pop, &next, &vfs.RenameOptions{Flags: flags})
	})
}

// remove removes for a task that is not in the first namespace.
func (m *mounts) remove(t *kernel.Task, at named, dir bool) error {
	return m.change(t, func(ctx kernelContext) error {
		pop, release, err := at.operation(t, false)
		if err != nil {
			return err
		}
		defer release()
		switch {
		case mountPoint(t, pop):
			return linuxerr.EBUSY
		case dir:
			return t.Kernel().VFS().RmdirAt(ctx, t.Credentials(), &pop)
		}
		return t.Kernel().VFS().UnlinkAt(ctx, t.Credentials(), &pop)
	})
}

// change calls f with a context of the first namespace. A file system looks in the
// namespace of its context, and while it holds its locks, for whether a file is a
// mount point.
func (m *mounts) change(t *kernel.Task, f func(kernelContext) error) error {
	ns, ok := m.hold(t)
	if !ok {
		return linuxerr.EBUSY
	}
	defer ns.DecRef(t)
	return f(vfs.WithMountNamespace(t, ns))
}

// mountPoint is whether a mount is seen at a path. It is for the task's own mounts,
// which the context of change leaves out, and decides nothing else: a moment later it
// may not be true.
func mountPoint(t *kernel.Task, pop vfs.PathOperation) bool {
	if !pop.Path.HasComponents() {
		return false
	}
	vd, err := t.Kernel().VFS().GetDentryAt(t, t.Credentials(), &pop, &vfs.GetDentryOptions{})
	if err != nil {
		return false
	}
	defer vd.DecRef(t)
	return vd.Dentry() == vd.Mount().Root()
}

// The kinds of mount(2) that are not a new file system. Only their flags decide.
const (
	propagation = linux.MS_SHARED | linux.MS_PRIVATE | linux.MS_SLAVE | linux.MS_UNBINDABLE
	unsupported = linux.MS_UNBINDABLE | linux.MS_NODIRATIME
)

// mount is mount(2). A bind, a move and a remount are gVisor's, which looks for their
// namespaces.
func (m *mounts) mount(do kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		flags := args[3].Uint64()
		if flags&linux.MS_MGC_MSK == linux.MS_MGC_VAL {
			flags &^= linux.MS_MGC_MSK
		}
		kept := flags&(linux.MS_REMOUNT|linux.MS_BIND) != 0 || flags&propagation == 0 && flags&linux.MS_MOVE != 0
		if kept || flags&unsupported != 0 || isAgent(t) {
			return do(t, sysno, args)
		}
		if err := mayMount(t); err != nil {
			return 0, nil, err
		}
		pop, release, err := named{linux.AT_FDCWD, args[1].Pointer()}.operation(t, true)
		if err != nil {
			return 0, nil, err
		}
		defer release()
		target, err := t.Kernel().VFS().GetDentryAt(t, t.Credentials(), &pop, &vfs.GetDentryOptions{})
		if err != nil {
			return 0, nil, err
		}
		defer target.DecRef(t)
		switch foreign, err := m.foreign(t, target); {
		case err != nil:
			return 0, nil, err
		case foreign:
			return 0, nil, linuxerr.EINVAL
		}
		found := vfs.PathOperation{Root: target, Start: target}
		if flags&propagation != 0 {
			if bits.OnesCount64(flags&propagation) != 1 {
				return 0, nil, linuxerr.EINVAL
			}
			return 0, nil, t.Kernel().VFS().SetMountPropagationAt(t, t.Credentials(), &found, uint32(flags))
		}
		return 0, nil, m.mountNew(t, args, flags, &found)
	}
}

// mountNew mounts a new file system at target. What it is told in memory is read
// once.
func (m *mounts) mountNew(t *kernel.Task, args arch.SyscallArguments, flags uint64, target *vfs.PathOperation) error {
	opts := vfs.MountOptions{
		Flags: vfs.MountFlags{
			NoATime: flags&(linux.MS_NOATIME|linux.MS_STRICTATIME) == linux.MS_NOATIME,
			NoExec:  flags&linux.MS_NOEXEC != 0,
			NoDev:   flags&linux.MS_NODEV != 0,
			NoSUID:  flags&linux.MS_NOSUID != 0,
		},
		ReadOnly: flags&linux.MS_RDONLY != 0,
	}
	data, err := optional(t, args[4].Pointer())
	if err != nil {
		return err
	}
	source, err := optional(t, args[0].Pointer())
	if err != nil {
		return err
	}
	fsType, err := t.CopyInString(args[2].Pointer(), hostarch.PageSize)
	if err != nil {
		return err
	}
	if fsType, err = m.fsType(t, fsType); err != nil {
		return err
	}
	opts.GetFilesystemOptions.Data = data
	_, err = t.Kernel().VFS().MountAt(t, t.Credentials(), source, target, fsType, &opts)
	return err
}

// optional reads a string that a program may leave out.
func optional(t *kernel.Task, addr hostarch.Addr) (string, error) {
	if addr == 0 {
		return "", nil
	}
	return t.CopyInString(addr, hostarch.PageSize)
}

// fsopen is fsopen(2). What it opens knows its type by a name that is read once.
func (m *mounts) fsopen(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	flags := args[1].Uint()
	if flags&^linux.FSOPEN_CLOEXEC != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	if err := mayMount(t); err != nil {
		return 0, nil, err
	}
	name, err := t.CopyInString(args[0].Pointer(), hostarch.PageSize)
	if err != nil {
		return 0, nil, err
	}
	if name, err = m.fsType(t, name); err != nil {
		return 0, nil, err
	}
	f, err := fsconfigfd.New(t, t.Kernel().VFS(), name, linux.O_RDWR)
	if err != nil {
		return 0, nil, err
	}
	defer f.DecRef(t)
	fd, err := t.NewFDFrom(0, f, kernel.FDFlags{CloseOnExec: flags&linux.FSOPEN_CLOEXEC != 0})
	return uintptr(fd), nil, err
}

// fsType is the type by which a file system is made that a program asks for by name.
func (m *mounts) fsType(t *kernel.Task, name string) (string, error) {
	// What is behind a dot is the program's own, for gVisor as for Linux.
	switch base, _, _ := strings.Cut(name, "."); base {
	case overlay.Name:
		if !m.registered.Swap(true) {
			t.Kernel().VFS().MustRegisterFilesystemType(layeredName, layered{m}, &vfs.RegisterFilesystemTypeOptions{AllowUserMount: true})
		}
		return layeredName, nil
	case cgroupfs.Name, cgroup2fs.Name:
		// The groups are the agent's.
		if !isAgent(t) {
			return "", linuxerr.EPERM
		}
	}
	return name, nil
}

func mayMount(t *kernel.Task) error {
	if !t.Credentials().HasCapabilityIn(linux.CAP_SYS_ADMIN, t.MountNamespace().Owner) {
		return linuxerr.EPERM
	}
	return nil
}

func isAgent(t *kernel.Task) bool { return t.ThreadGroup() == t.Kernel().GlobalInit() }

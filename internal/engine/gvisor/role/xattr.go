//go:build linux

package role

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// gVisor's file system that is served by a gofer does not ask whether a mount is
// read-only before it changes an extended attribute. So these calls are made here,
// where that is asked; everything else of them is gVisor's.

// attributed is what an extended attribute is about to be changed of.
type attributed struct {
	mount   *vfs.Mount
	set     func(vfs.SetXattrOptions) error
	remove  func(name string) error
	release func()
}

// xattrCalls are by their names in gVisor's tables.
func xattrCalls() map[string]kernel.SyscallFn {
	set := func(find func(*kernel.Task, arch.SyscallArguments) (attributed, error)) kernel.SyscallFn {
		return func(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			return 0, nil, setAttribute(t, args, find)
		}
	}
	remove := func(find func(*kernel.Task, arch.SyscallArguments) (attributed, error)) kernel.SyscallFn {
		return func(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			return 0, nil, removeAttribute(t, args, find)
		}
	}
	return map[string]kernel.SyscallFn{
		"setxattr": set(byPath(true)), "lsetxattr": set(byPath(false)), "fsetxattr": set(byFile),
		"removexattr": remove(byPath(true)), "lremovexattr": remove(byPath(false)), "fremovexattr": remove(byFile),
	}
}

// byPath finds a file once: what was asked about is what is changed.
func byPath(follow bool) func(*kernel.Task, arch.SyscallArguments) (attributed, error) {
	return func(t *kernel.Task, args arch.SyscallArguments) (attributed, error) {
		name, err := t.CopyInString(args[0].Pointer(), linux.PATH_MAX)
		if err != nil {
			return attributed{}, err
		}
		if name == "" {
			return attributed{}, linuxerr.ENOENT
		}
		root, start := t.FSContext().RootDirectory(), t.FSContext().WorkingDirectory()
		defer root.DecRef(t)
		defer start.DecRef(t)
		fs, creds := t.Kernel().VFS(), t.Credentials()
		pop := vfs.PathOperation{Root: root, Start: start, Path: fspath.Parse(name), FollowFinalSymlink: follow}
		if pop.Path.Absolute {
			pop.Start = root
		}
		vd, err := fs.GetDentryAt(t, creds, &pop, &vfs.GetDentryOptions{})
		if err != nil {
			return attributed{}, err
		}
		root.IncRef()
		found := vfs.PathOperation{Root: root, Start: vd}
		return attributed{
			mount:   vd.Mount(),
			set:     func(o vfs.SetXattrOptions) error { return fs.SetXattrAt(t, creds, &found, &o) },
			remove:  func(name string) error { return fs.RemoveXattrAt(t, creds, &found, name) },
			release: func() { vd.DecRef(t); root.DecRef(t) },
		}, nil
	}
}

func byFile(t *kernel.Task, args arch.SyscallArguments) (attributed, error) {
	f := t.GetFile(args[0].Int())
	if f == nil {
		return attributed{}, linuxerr.EBADF
	}
	return attributed{
		mount:   f.VirtualDentry().Mount(),
		set:     func(o vfs.SetXattrOptions) error { return f.SetXattr(t, &o) },
		remove:  func(name string) error { return f.RemoveXattr(t, name) },
		release: func() { f.DecRef(t) },
	}, nil
}

func setAttribute(t *kernel.Task, args arch.SyscallArguments, find func(*kernel.Task, arch.SyscallArguments) (attributed, error)) error {
	flags, size := args[4].Int(), args[3].SizeT()
	if flags&^(linux.XATTR_CREATE|linux.XATTR_REPLACE) != 0 {
		return linuxerr.EINVAL
	}
	name, err := attributeName(t, args)
	if err != nil {
		return err
	}
	if size > linux.XATTR_SIZE_MAX {
		return linuxerr.E2BIG
	}
	value := make([]byte, size)
	if _, err := t.CopyInBytes(args[2].Pointer(), value); err != nil {
		return err
	}
	return change(t, args, find, func(a attributed) error {
		return a.set(vfs.SetXattrOptions{Name: name, Value: string(value), Flags: uint32(flags)})
	})
}

func removeAttribute(t *kernel.Task, args arch.SyscallArguments, find func(*kernel.Task, arch.SyscallArguments) (attributed, error)) error {
	name, err := attributeName(t, args)
	if err != nil {
		return err
	}
	return change(t, args, find, func(a attributed) error { return a.remove(name) })
}

// change calls f with what find finds, if its mount is to be written.
func change(t *kernel.Task, args arch.SyscallArguments, find func(*kernel.Task, arch.SyscallArguments) (attributed, error), f func(attributed) error) error {
	a, err := find(t, args)
	if err != nil {
		return err
	}
	defer a.release()
	if err := a.mount.CheckBeginWrite(); err != nil {
		return err
	}
	defer a.mount.EndWrite()
	return f(a)
}

func attributeName(t *kernel.Task, args arch.SyscallArguments) (string, error) {
	name, err := t.CopyInString(args[1].Pointer(), linux.XATTR_NAME_MAX+1)
	if linuxerr.Equals(linuxerr.ENAMETOOLONG, err) || err == nil && name == "" {
		return "", linuxerr.ERANGE
	}
	return name, err
}

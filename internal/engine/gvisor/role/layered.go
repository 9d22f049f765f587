//go:build linux

package role

import (
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// kernelContext is what gVisor's file systems are called with.
type kernelContext = context.Context

// layeredName is the name of layered. It has no dot, at which gVisor cuts names.
const layeredName = "checked-overlay"

// layered makes overlays as programs ask for them, by mount(2) or fsconfig(2). It
// resolves each layer once, refuses one on a file system of which a part is mounted
// over in the first mount namespace, and gives gVisor's overlay what it has resolved.
//
// It does not ask whether the part is in the layer: a directory could be moved into
// the layer later. The root file system is excepted: below its mounts is nothing that
// the sandbox may not have.
type layered struct{ *mounts }

// Name implements vfs.FilesystemType.
func (layered) Name() string { return overlay.Name }

// Release implements vfs.FilesystemType.
func (layered) Release(context.Context) {}

// GetFilesystem implements vfs.FilesystemType.
func (l layered) GetFilesystem(ctx context.Context, fs *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	t := kernel.TaskFromContext(ctx)
	if t == nil || opts.InternalData != nil {
		return nil, nil, linuxerr.EPERM
	}
	options := vfs.GenericParseMountOptions(opts.Data)
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	f := finder{mounts: l.mounts, t: t, fs: fs, creds: creds, root: root}
	defer f.release()
	upper, hasUpper := options["upperdir"]
	lower, hasLower := options["lowerdir"]
	_, attributes := options["userxattr"]
	var layers overlay.FilesystemOptions
	if hasUpper {
		vd, err := f.upper(upper)
		if err != nil {
			return nil, nil, err
		}
		layers.UpperRoot = vd
		// gVisor's gofer has no right to the others.
		attributes = attributes || vd.Mount().Filesystem().FilesystemType().Name() == gofer.Name
	}
	if hasLower {
		names := strings.Split(lower, ":")
		if len(names) > maxLayers {
			return nil, nil, linuxerr.EINVAL
		}
		for _, name := range names {
			vd, err := f.layer(name, true)
			if err != nil {
				return nil, nil, err
			}
			layers.LowerRoots = append(layers.LowerRoots, vd)
		}
	}
	if hasUpper {
		f.makeWork(options)
		delete(options, "workdir")
	}
	delete(options, "upperdir")
	delete(options, "lowerdir")
	if attributes && options["userxattr"] == "" {
		options["userxattr"] = ""
	}
	opts.Data, opts.InternalData = join(options), layers
	return overlay.FilesystemType{}.GetFilesystem(ctx, fs, creds, source, opts)
}

// maxLayers is Linux's, and gVisor's.
const maxLayers = 500

// join is what GenericParseMountOptions makes options of.
func join(options map[string]string) string {
	var parts []string
	for k, v := range options {
		if v != "" {
			k += "=" + v
		}
		parts = append(parts, k)
	}
	sort.Strings(parts)
	return strings.Join(parts, ",")
}

// finder resolves the layers of one overlay.
type finder struct {
	*mounts
	t     *kernel.Task
	fs    *vfs.VirtualFilesystem
	creds *auth.Credentials
	root  vfs.VirtualDentry
	found []vfs.VirtualDentry
}

// release gives up the finder's references to what it has found.
func (f *finder) release() {
	for _, vd := range f.found {
		vd.DecRef(f.t)
	}
}

func (f *finder) operation(name string, follow bool) *vfs.PathOperation {
	return &vfs.PathOperation{Root: f.root, Start: f.root, Path: fspath.Parse(name), FollowFinalSymlink: follow}
}

// makeWork makes the directory that programs expect in a workdir, which gVisor's
// overlay does not need. Like there, it is no error that it cannot.
func (f *finder) makeWork(options map[string]string) {
	if dir, ok := options["workdir"]; ok && strings.HasPrefix(dir, "/") {
		_ = f.fs.MkdirAt(f.t, f.creds, f.operation(dir+"/work", false), &vfs.MkdirOptions{Mode: linux.ModeUserAll})
	}
}

// upper finds the upper layer. Only two types can be one for programs.
func (f *finder) upper(name string) (vfs.VirtualDentry, error) {
	vd, err := f.layer(name, false)
	if err != nil {
		return vfs.VirtualDentry{}, err
	}
	switch vd.Mount().Filesystem().FilesystemType().Name() {
	case tmpfs.Name, gofer.Name:
		return vd, nil
	}
	return vfs.VirtualDentry{}, linuxerr.EINVAL
}

// layer is a mount of its own of what is at an absolute path.
func (f *finder) layer(name string, readOnly bool) (vfs.VirtualDentry, error) {
	if !strings.HasPrefix(name, "/") {
		return vfs.VirtualDentry{}, linuxerr.EINVAL
	}
	vd, err := f.fs.GetDentryAt(f.t, f.creds, f.operation(name, true), &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return vfs.VirtualDentry{}, err
	}
	defer vd.DecRef(f.t)
	switch covered, err := f.covered(f.t, vd.Mount().Filesystem()); {
	case err != nil:
		return vfs.VirtualDentry{}, err
	case covered:
		if f.tell != nil {
			f.tell(f.t, vd)
		}
		return vfs.VirtualDentry{}, linuxerr.EPERM
	}
	opts := vd.Mount().Options()
	opts.ReadOnly = opts.ReadOnly || readOnly
	own := vfs.MakeVirtualDentry(f.fs.NewDisconnectedMount(vd.Mount().Filesystem(), vd.Dentry(), &opts), vd.Dentry())
	own.Dentry().IncRef()
	f.found = append(f.found, own)
	return own, nil
}

// covered is whether something is mounted on a file system in the first mount
// namespace, which is not the root of that.
func (m *mounts) covered(t *kernel.Task, fs *vfs.Filesystem) (bool, error) {
	ns, ok := m.hold(t)
	if !ok {
		return true, nil
	}
	defer ns.DecRef(t)
	root := ns.Root(t)
	defer root.DecRef(t)
	if fs == root.Mount().Filesystem() {
		return false, nil
	}
	all := t.Kernel().VFS().GetAllMounts(t)
	defer func() {
		for _, mnt := range all {
			mnt.DecRef(t)
		}
	}()
	var seen []placed
	for _, mnt := range all {
		if mnt.Root() == nil {
			continue
		}
		name, err := t.Kernel().VFS().PathnameReachable(t, root, vfs.MakeVirtualDentry(mnt, mnt.Root()))
		if err != nil {
			return true, err
		}
		if name != "" {
			seen = append(seen, placed{name: name, id: mnt.ID, on: mnt.Filesystem() == fs})
		}
	}
	return under(seen), nil
}

// placed is a mount of the first mount namespace.
type placed struct {
	name string
	id   uint64 // the later, the greater
	on   bool   // it is of the file system that is asked about
}

// under is whether any mount is on one that is asked about. Of those that are mounted
// at one path the later is on the earlier; one below could be on each of them.
func under(all []placed) bool {
	for _, mnt := range all {
		above := ""
		for _, p := range all {
			if p.name != mnt.name && within(mnt.name, p.name) && len(p.name) > len(above) {
				above = p.name
			}
		}
		for _, p := range all {
			if p.on && (p.name == above || p.name == mnt.name && p.id < mnt.id) {
				return true
			}
		}
	}
	return false
}

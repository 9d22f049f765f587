//go:build linux

package role

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
)

// Late gives a sandbox that has booted what its request says: mounts, rules and a network. Only its agent runs by then,
// and waits. It is served on a socket of its own, as gVisor's control server has no calls of others.
type Late struct {
	guard   *guard
	title   []byte // of the process
	claimed atomic.Bool
	far     *os.File // held, see the engine's holdFar
}

// serveLate serves a Late on a socket. It must be called before the sentry's filters are installed.
func serveLate(fd int, g *guard, title []byte) error {
	sock, err := unet.NewSocket(fd)
	if err != nil {
		return fmt.Errorf("open socket of a claim: %w", err)
	}
	s := urpc.NewServer()
	s.Register(&Late{guard: g, title: title})
	s.StartHandling(sock)
	go g.prepareStub()
	return nil
}

// prepareStub makes a stub process and leaves it to gVisor's own pool of them, for the first program of the sandbox.
// A stub takes 5 to 7 ms to make, and an agent that waits uses those it has.
func (g *guard) prepareStub() {
	k, err := g.awaitKernel()
	if err != nil {
		return // the claim says it too
	}
	if as, err := k.Platform.NewAddressSpace(); err == nil {
		as.Release()
	}
}

// Claim does what c says. Its error says what could not be done, and leaves a sandbox of no use.
func (l *Late) Claim(c *claim.Late, _ *struct{}) error {
	defer func() {
		for _, f := range c.Files {
			f.Close()
		}
	}()
	if l.claimed.Swap(true) {
		return errors.New("it was claimed before")
	}
	want := len(c.Mounts)
	if c.Rules != nil {
		want += 2
	}
	if c.Link != "" {
		want += 2
	}
	if len(c.Files) != want {
		return fmt.Errorf("it needs %d descriptors and has %d", want, len(c.Files))
	}
	k, err := l.guard.awaitKernel()
	if err != nil {
		return err
	}
	setTitle(l.title, c.Title)
	k.GlobalInit().Leader().UTSNamespace().SetHostName(k.SupervisorContext(), c.Hostname)
	files := c.Files
	for _, m := range c.Mounts {
		if err := mountLate(k, m, files[0]); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		files = files[1:]
	}
	if c.Rules != nil {
		if err := l.guard.begin(rules(*c.Rules), files[0], files[1]); err != nil {
			return err
		}
		files = files[2:]
	}
	if c.Link == "" {
		return nil
	}
	return l.connect(k, c.Link, files[0], files[1])
}

// connect makes the device of a link, beside the loopback.
func (l *Late) connect(k *kernel.Kernel, link string, guest, far *os.File) error {
	var args boot.CreateLinksAndRoutesArgs
	if err := json.Unmarshal([]byte(link), &args); err != nil {
		return fmt.Errorf("read link: %w", err)
	}
	s, ok := k.RootNetworkNamespace().Stack().(*netstack.Stack)
	if !ok {
		return errors.New("there is no network stack")
	}
	if len(args.FDBasedLinks) != 1 {
		return fmt.Errorf("%d links", len(args.FDBasedLinks))
	}
	args.Files = []*os.File{guest} // it duplicates it
	// What gVisor does to a link before it installs its filters is for packet sockets only.
	args.FDBasedLinks[0].IsPacket, args.FDBasedLinks[0].PreConfigured = []bool{false}, true
	fd, err := unix.Dup(int(far.Fd()))
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	l.far = os.NewFile(uintptr(fd), "link")
	before := s.Stack.GetRouteTable() // the loopback's
	n := boot.Network{Stack: s.Stack, Kernel: k}
	if err := n.CreateLinksAndRoutes(&args, nil); err != nil {
		return err
	}
	s.Stack.SetRouteTable(append(before, s.Stack.GetRouteTable()...))
	return nil
}

// kernelTimeout is how long a claim waits for the agent's first system call.
const kernelTimeout = 10 * time.Second

// awaitKernel waits until the agent has made a system call, and returns its kernel.
func (g *guard) awaitKernel() (*kernel.Kernel, error) {
	late := time.NewTimer(kernelTimeout)
	defer late.Stop()
	select {
	case <-g.begun:
		return g.kernel.Load(), nil
	case <-late.C:
		return nil, errors.New("its agent has not begun")
	}
}

// begin has the guard answer and tell by rules from now on.
func (g *guard) begin(r rules, pipe, count *os.File) error {
	fds := make([]int, 2)
	for i, f := range []*os.File{pipe, count} {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			return os.NewSyscallError("dup", err)
		}
		fds[i] = fd
	}
	return g.use(r, fds[0], fds[1])
}

// mountLate mounts what a gofer serves, as gVisor mounts what a sandbox boots with.
func mountLate(k *kernel.Kernel, m claim.Mount, conn *os.File) error {
	ctx := k.SupervisorContext()
	mns := k.GlobalInit().Leader().MountNamespace()
	if mns == nil || !mns.TryIncRef() {
		return errors.New("its agent has ended")
	}
	defer mns.DecRef(ctx)
	creds := auth.NewRootCredentials(k.RootUserNamespace())
	fd, err := unix.Dup(int(conn.Fd()))
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	data := "trans=fd,rfdno=" + strconv.Itoa(fd) + ",wfdno=" + strconv.Itoa(fd) + ",disable_fifo_open"
	if !m.Exclusive {
		data += ",cache=remote_revalidating"
	}
	opts := &vfs.MountOptions{
		Flags:    vfs.MountFlags{NoSUID: true, NoDev: true},
		ReadOnly: m.ReadOnly,
		GetFilesystemOptions: vfs.GetFilesystemOptions{Data: data, InternalMount: true, InternalData: gofer.InternalFilesystemOptions{
			// By this a restore finds the connection that its mount gets: as for a mount of gVisor's own.
			UniqueID: checkpoint.ResourceID{ContainerName: k.ContainerName(k.GlobalInit().Leader().ContainerID()), Path: m.Target},
		}},
	}
	mnt, err := k.VFS().MountDisconnected(ctx, creds, "", gofer.Name, opts)
	if err != nil {
		// The file system has closed it, or the process is of no use and about to end.
		return err
	}
	defer mnt.DecRef(ctx)
	root := mns.Root(ctx)
	defer root.DecRef(ctx)
	vd := vfs.MakeVirtualDentry(mnt, mnt.Root())
	dir, err := isDir(ctx, k.VFS(), creds, &vfs.PathOperation{Root: vd, Start: vd})
	if err != nil {
		return err
	}
	if err := makeMountPoint(ctx, k.VFS(), creds, root, m.Target, dir); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return k.VFS().ConnectMountAt(ctx, creds, mnt, &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(m.Target), FollowFinalSymlink: true})
}

// makeMountPoint makes a directory, or a file, if there is nothing at target.
func makeMountPoint(ctx context.Context, in *vfs.VirtualFilesystem, creds *auth.Credentials, root vfs.VirtualDentry, target string, dir bool) error {
	pop := &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(target), FollowFinalSymlink: true}
	switch is, err := isDir(ctx, in, creds, pop); {
	case err == nil && is != dir:
		return linuxerr.ENOTDIR
	case err == nil || !linuxerr.Equals(linuxerr.ENOENT, err):
		return err
	}
	pop.FollowFinalSymlink = false
	opts := &vfs.MkdirOptions{Mode: 0o755, ForSyntheticMountpoint: true}
	if err := in.MkdirAllAt(ctx, path.Dir(target), root, creds, opts, true); err != nil {
		return err
	}
	if dir {
		return in.MkdirAt(ctx, creds, pop, opts)
	}
	return in.MknodAt(ctx, creds, pop, &vfs.MknodOptions{Mode: linux.S_IFREG | 0o644})
}

func isDir(ctx context.Context, in *vfs.VirtualFilesystem, creds *auth.Credentials, pop *vfs.PathOperation) (bool, error) {
	st, err := in.StatAt(ctx, creds, pop, &vfs.StatOptions{Mask: linux.STATX_TYPE})
	if err != nil {
		return false, err
	}
	if st.Mask&linux.STATX_TYPE == 0 {
		return false, linuxerr.EIO
	}
	return st.Mode&linux.FileTypeMask == linux.ModeDirectory, nil
}

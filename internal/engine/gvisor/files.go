//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// open makes or opens every file of the sandbox's processes and writes their
// command lines.
func (c *creation) open(context.Context) error {
	c.undo.Add(func() { removeFiles(c.plan.Dir) })
	var err error
	if c.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return err
	}
	if c.spec, err = specJSON(c.plan); err != nil {
		return err
	}
	c.sentry.args, c.sentry.first = []string{early.Sentry}, claim.FirstFile
	if c.waits != nil {
		if err := c.openLate(); err != nil {
			return err
		}
	}
	if c.reports, err = c.openGuard(); err != nil {
		return err
	}
	c.sentry.args = append(c.sentry.args, baseFlags(c.plan.Dir)...)
	c.sentry.args = append(c.sentry.args, "--panic-log-fd="+strconv.Itoa(claim.Crash))
	if c.plan.Memory != nil {
		// gVisor would miss mounts that came with a claim in the description that the memory has.
		c.sentry.args = append(c.sentry.args, "--restore-spec-validation=ignore")
	}
	confs := mountConfs(c.plan)
	c.sentry.args = append(c.sentry.args, "boot", "--bundle="+c.plan.Dir, "--gofer-mount-confs="+confs)
	if c.plan.DieWithParent {
		c.sentry.args = append(c.sentry.args, "--attached")
	}
	c.sentry.args = append(c.sentry.args, c.sizeFlags()...)
	if err := c.openRoot(); err != nil {
		return err
	}
	if c.hasGofer() {
		if err := c.openGofer(); err != nil {
			return err
		}
	}
	if err := c.openSentry(); err != nil {
		return err
	}
	if err := c.holdFar(); err != nil {
		return err
	}
	c.sentry.args = append(c.sentry.args, c.plan.ID)
	return nil
}

// openRoot opens the images and the file that takes what is written to the root.
func (c *creation) openRoot() error {
	for _, path := range []string{c.plan.Root.Image, c.plan.Agent.Image} {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("open image: %w", err)
		}
		c.sentry.flag("io-fds", f)
	}
	if c.plan.Root.ReadOnly && c.plan.Memory != nil {
		return nil // its mount points are in the memory
	}
	if c.plan.Root.ReadOnly {
		whole := c.plan
		if c.waits != nil {
			whole.Mounts = slices.Concat(whole.Mounts, c.e.late.mountsAt(c.waits.kind.points))
		}
		points, err := mountPoints(whole.Root.Image, spec(whole).Mounts)
		if err != nil {
			return err
		}
		c.sentry.flag("rootfs-upper-tar-fd", points)
		return nil
	}
	if c.plan.Root.Upper != "" && c.plan.Memory == nil {
		f, err := os.Open(c.plan.Root.Upper)
		if err != nil {
			return fmt.Errorf("open the layer to begin with: %w", err)
		}
		c.sentry.flag("rootfs-upper-tar-fd", f)
	}
	store, err := unnamedFile(c.plan.Dir)
	if err != nil {
		return fmt.Errorf("make file for the writable layer: %w", err)
	}
	c.sentry.flag("gofer-filestore-fds", store)
	return nil
}

// unnamedFile makes a file without a name in dir: it is gone with the last
// process that has it open.
func unnamedFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "filestore"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "filestore-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// openGofer connects one gofer to the sentry, with a socket for each mount. A sandbox
// that waits keeps those of its slots.
func (c *creation) openGofer() error {
	served, spec := c.plan, c.spec
	if c.waits != nil {
		var err error
		served.Mounts = c.e.late.withSlots(c.plan.Mounts, c.waits.kind.slots)
		if spec, err = specJSON(served); err != nil {
			return err
		}
	}
	c.gofer.args = append([]string{early.FirstGofer}, baseFlags(c.plan.Dir)...)
	var theirs *os.File
	var err error
	if c.goferCrash, theirs, err = crashFile(); err != nil {
		return err
	}
	c.gofer.flag("panic-log-fd", theirs)
	c.gofer.args = append(c.gofer.args, "gofer", "--bundle="+c.plan.Dir, "--gofer-mount-confs="+mountConfs(served))
	f, err := memoryFile("spec", spec)
	if err != nil {
		return err
	}
	c.gofer.flag("spec-fd", f)
	for n := range served.Mounts {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		ours := os.NewFile(uintptr(fds[0]), "mount")
		if n < len(c.plan.Mounts) {
			c.sentry.flag("io-fds", ours)
		} else {
			c.waits.conns = append(c.waits.conns, ours)
		}
		c.gofer.flag("io-fds", os.NewFile(uintptr(fds[1]), "mount"))
	}
	if err := c.openResolved(); err != nil {
		return err
	}
	// By this socket a gofer may ask to have opened what it cannot open itself.
	// No process answers: a source that the gofer cannot open is an error.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.Close(fds[0])
	c.gofer.flag("rpc-fd", os.NewFile(uintptr(fds[1]), "rpc"))
	c.gofer.args = append(c.gofer.args, c.plan.ID)
	return nil
}

// openResolved has the gofer tell the sentry the targets, which it resolves. The sentry
// of a sandbox that waits must not be told of slots: there the engine is told, which learns
// that the gofer has them. No sentry is told by a late gofer.
func (c *creation) openResolved() error {
	if c.late {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		c.gofer.flag("mounts-fd", null)
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if c.waits != nil {
		c.waits.gofer = r
	} else {
		c.sentry.flag("mounts-fd", r)
	}
	c.gofer.flag("mounts-fd", w)
	return nil
}

// openSentry gives the sentry the rest: its control socket, its spec, the
// standard streams of the agent and the pipe on which it says that it is up.
func (c *creation) openSentry() error {
	sock, err := listenControl(filepath.Join(c.plan.Dir, controlSocket))
	if err != nil {
		return err
	}
	c.sentry.flag("controller-fd", sock)
	f, err := memoryFile("spec", c.spec)
	if err != nil {
		return err
	}
	c.sentry.flag("spec-fd", f)
	for range 3 {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		c.sentry.flag("stdio-fds", null)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.sync = r
	c.sentry.flag("start-sync-fd", w)
	if c.plan.Memory != nil {
		return nil // the agent has begun
	}
	return c.openAgent()
}

// openAgent gives the agent its configuration, the pipe on which it says that it listens, and two connections.
func (c *creation) openAgent() error {
	told, err := c.configuration()
	if err != nil {
		return err
	}
	c.sentry.args = append(c.sentry.args, "--pass-fd="+c.sentry.add(told)+":3")
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.ready = r
	c.sentry.args = append(c.sentry.args, "--pass-fd="+c.sentry.add(w)+":4")

	for n, mine := range []**os.File{&c.first, &c.warm} {
		ours, theirs, err := socketPair()
		if err != nil {
			return err
		}
		*mine = ours
		c.sentry.args = append(c.sentry.args, "--pass-fd="+c.sentry.add(theirs)+":"+strconv.Itoa(agentSocketFD+n))
	}
	return nil
}

// configuration is what the agent reads its configuration from. The one of a booted sandbox waits.
func (c *creation) configuration() (*os.File, error) {
	if c.waits != nil {
		// Not by os.Pipe, whose ends do not block: the agent waits in a read.
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, os.NewSyscallError("pipe2", err)
		}
		c.waits.tell = os.NewFile(uintptr(fds[1]), "config")
		ours := os.NewFile(uintptr(fds[0]), "config")
		if early := c.plan.Agent.Early; len(early) > 0 {
			if _, err := c.waits.tell.Write(append(slices.Clip(early), '\n')); err != nil {
				ours.Close()
				return nil, fmt.Errorf("tell an agent its early configuration: %w", err)
			}
		}
		return ours, nil
	}
	fd, err := pidfd.ConfigPipe(c.plan.Agent.Config)
	return os.NewFile(uintptr(fd), "config"), err
}

// agentSocketFD is the descriptor of the first of the agent's two sockets.
const agentSocketFD = 5

// socketPair makes a connection of which each end is given away.
func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	for _, fd := range fds {
		roomy(fd)
	}
	return os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "agent"), nil
}

// roomy lets a socket buffer more than the host's default, which is
// less than what is written at once. Where the host does not allow it, that is
// slower and no more.
func roomy(fd int) {
	const bytes = 1 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bytes)
	}
}

// crashFile is a standard error that cannot grow, twice.
func crashFile() (ours, theirs *os.File, err error) {
	fd, err := unix.MemfdCreate("crash", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("make crash file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "crash")
	if err := f.Truncate(maxCrash); err != nil {
		f.Close()
		return nil, nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		f.Close()
		return nil, nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, os.NewFile(uintptr(dup), "crash"), nil
}

// removeFiles removes what the engine leaves in a plan's directory.
func removeFiles(dir string) {
	_ = os.Remove(filepath.Join(dir, controlSocket))
	_ = os.Remove(filepath.Join(dir, markFile))
	_ = os.Remove(filepath.Join(dir, notesPipe))
	_ = os.Remove(filepath.Join(dir, countFile))
}

// memoryFile is a file without a place, for a process that is given its
// descriptor.
func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("write memory file: %w", err)
	}
	return f, nil
}

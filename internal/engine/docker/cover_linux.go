package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// covers reports whether paths of the host can be covered in a daemon's containers. That is
// done from here, in the container's mount namespace: the runtime takes no files of this process for
// /proc without showing where they are, and of a socket that is gone by then it would leave
// a file in the host's directory.
func (e *Engine) covers(d *daemon, info system.Info) bool {
	path, isSocket := strings.CutPrefix(d.host, "unix://")
	return isSocket && isHere(d.host, info) && slices.Contains(ownKernel, e.runtime(info)) && mayEnter() && seesProcesses(path)
}

// coverPlace is a directory that every container has.
const coverPlace = "/dev"

// cover covers files of /proc, and sockets of the host in mounts, in a container that has
// been started, and runs nothing yet but the program that waits for the agent's configuration.
func (c *creation) cover(ctx context.Context, id string) error {
	info, err := c.info(ctx)
	if err != nil {
		return err
	}
	if !c.e.covers(c.d, info) {
		return nil // as the report says
	}
	found, err := c.d.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	if found.Container.State == nil || found.Container.State.Pid <= 0 {
		return errAgentDied
	}
	ns, err := mountNamespace(found.Container.State.Pid, id)
	if err != nil {
		return fmt.Errorf("enter the container's mounts: %w", err)
	}
	defer ns.Close()
	shown, err := shownGroups(found.Container.State.Pid, id)
	if err != nil {
		return fmt.Errorf("find the container's cgroups: %w", err)
	}
	defer closeShown(shown)
	// The thread ends with this. It is not the first one, whose mounts stand for those of
	// this process.
	thread := pidfd.NewSpawner()
	defer thread.Close()
	return thread.Do(ctx, func() error { return coverIn(ns, hostrootfs.StandIns(), shown, c.p.Mounts) })
}

// mountNamespace is the mount namespace of a process, if the process is in a container. Its cgroup has
// the container's name: the number may be another process's here.
func mountNamespace(pid int, id string) (*os.File, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	ns, err := os.Open(proc + "/ns/mnt")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile(proc + "/cgroup")
	if err == nil && !strings.Contains(string(groups), id) {
		err = fmt.Errorf("process %d is in no cgroup of the container", pid)
	}
	var own, other unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Stat("/proc/self/ns/mnt", &own), unix.Fstat(int(ns.Fd()), &other))
	}
	if err == nil && own.Ino == other.Ino {
		err = fmt.Errorf("process %d has no mounts of its own", pid)
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// coverIn covers files of /proc and sockets, and shows the container's cgroups, in a mount
// namespace, which the calling thread enters for good.
func coverIn(ns *os.File, files []hostrootfs.StandIn, shown []shownGroup, mounts []engine.Mount) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	if err := hostrootfs.PutStandIns(coverPlace, files); err != nil {
		return err
	}
	if err := putShown(shown); err != nil {
		return fmt.Errorf("show the container's cgroups: %w", err)
	}
	var in []hostrootfs.Covered
	defer func() {
		for _, m := range in {
			_ = unix.Close(m.Mount)
		}
	}()
	for _, m := range mounts {
		if len(m.Sockets) == 0 {
			continue
		}
		fd, err := unix.Open(m.Target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("find what is mounted at %s: %w", m.Target, err)
		}
		in = append(in, hostrootfs.Covered{Mount: fd, Sockets: m.Sockets})
	}
	if len(in) == 0 {
		return nil
	}
	return hostrootfs.CoverSockets(coverPlace, in)
}

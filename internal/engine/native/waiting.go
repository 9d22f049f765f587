//go:build linux

package native

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// wait writes the script of an agent that is executed before there is a plan: in its
// namespaces and groups, with a /proc, /sys and /dev on a root that holds nothing else.
// Program is its name in its image. It waits for its configuration, which is a socket.
func (s *script) wait(p engine.Plan, ids hostrootfs.IDs, h handed, program string) error {
	s.begin(p, h)
	s.identity(p, ids)
	s.sources(&h)
	// See root.
	s.now = "make /proc"
	proc := s.filesystem("proc", quietAttrs)
	s.now = "make /sys"
	sys := s.filesystem("sysfs", quietAttrs|unix.MOUNT_ATTR_RDONLY)
	s.now = "leave the host's root"
	s.do(unix.SYS_MOUNT, "none", "/proc", "tmpfs", layerFlags|unix.MS_NOEXEC, "size=64k,mode=755")
	s.do(unix.SYS_CHDIR, "/proc")
	s.pivot()
	s.now = mountSystem
	s.system(proc, "/proc")
	s.system(sys, "/sys")
	s.network(p, 0)
	s.quietDevices()
	s.kernel(h, ids, true)
	s.weaken(p, ids)
	s.handOver(h, 0)
	for _, fd := range []int{tapFD, guestFD, farFD} {
		// No file that the agent opens is to be where its link comes.
		s.do(unix.SYS_DUP3, h.config, fd, 0)
	}
	// The kernel closes them when it executes, and the engine sees that it has.
	s.do(unix.SYS_CLOSE_RANGE, groupFD+maxGroups, maxFD, unix.CLOSE_RANGE_CLOEXEC)
	s.quiet(p)
	s.now = executeAgent
	s.do(unix.SYS_EXECVEAT, h.agent.at, program, s.vector(p.Agent.Argv), s.vector(nil), 0)
	return s.close()
}

// furnish writes the script of a process that enters the namespaces of a waiting agent,
// makes the root that the plan says around it, tells it its configuration and ends.
// Agent is a pidfd, and tell the other end of its configuration.
func (s *script) furnish(p engine.Plan, ids hostrootfs.IDs, h handed, agent, tell int) error {
	s.now = "die with the daemon"
	s.do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
	tap := slot(0)
	if h.guest >= 0 {
		// In its network, and as the daemon's user, whom the device lets in.
		s.now = "open /dev/net/tun"
		s.do(unix.SYS_SETNS, agent, unix.CLONE_NEWNET)
		tap = s.get(unix.SYS_OPENAT, unix.AT_FDCWD, "/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC)
	}
	s.now = "enter the namespaces"
	s.do(unix.SYS_SETNS, agent, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWNET)
	s.become(p, ids)
	h.root.at, h.agent.at = h.root.fd, h.agent.fd
	for i := range h.mounts {
		h.mounts[i].at = h.mounts[i].fd
	}
	s.now = mountSystem
	names := []string{"/proc", "/sys", "/dev"}
	var mounts []slot
	for _, name := range names {
		mounts = append(mounts, s.get(unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC))
	}
	s.now = "make the root"
	s.do(unix.SYS_MOUNT, "none", "/", 0, unix.MS_REMOUNT|layerFlags, layer(p)) // now there is a size
	s.do(unix.SYS_CHDIR, "/")
	s.overlay(&h, unix.MS_NODEV)
	s.now = "enter the root"
	s.do(unix.SYS_CHDIR, "root")
	// The root before is in sight of what has it open until it is unmounted.
	s.do(unix.SYS_PIVOT_ROOT, ".", ".")
	s.now = mountSystem
	for i, name := range names {
		s.system(mounts[i], name)
	}
	s.do(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.do(unix.SYS_CHDIR, "/")
	if p.Link != nil {
		sock := s.get(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		s.link(p.Link, sock, tap)
	}
	s.places(p, h)
	s.readOnly(p)
	s.now = "tell the agent"
	var rights []int
	if p.Link != nil {
		s.do(unix.SYS_DUP3, tap, tapFD, unix.O_CLOEXEC)
		rights = []int{tapFD, h.guest, h.far}
	}
	s.do(unix.SYS_SENDMSG, tell, s.message(p.Agent.Config, rights), unix.MSG_NOSIGNAL)
	s.do(unix.SYS_SHUTDOWN, tell, unix.SHUT_WR)
	s.do(unix.SYS_EXIT_GROUP, 0)
	return s.close()
}

// message is the argument of sendmsg for data with descriptors.
func (s *script) message(data []byte, rights []int) uintptr {
	text := s.bytes(data)
	var control []byte
	if len(rights) > 0 {
		control = unix.UnixRights(rights...)
	}
	ancillary := s.bytes(control)
	iov := s.reserve(unsafe.Sizeof(unix.Iovec{}))
	head := s.reserve(unsafe.Sizeof(unix.Msghdr{}))
	if s.err != nil {
		return 0
	}
	i := (*unix.Iovec)(unsafe.Add(s.base(), iov))
	i.Base = (*byte)(unsafe.Add(s.base(), text-uintptr(s.base())))
	i.SetLen(len(data))
	m := (*unix.Msghdr)(unsafe.Add(s.base(), head))
	m.Iov = i
	m.SetIovlen(1)
	if len(control) > 0 {
		m.Control = (*byte)(unsafe.Add(s.base(), ancillary-uintptr(s.base())))
		m.SetControllen(len(control))
	}
	return uintptr(s.base()) + head
}

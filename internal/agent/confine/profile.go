//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// action is what becomes of a system call.
type action int

const (
	unknown action = iota // it fails with ENOSYS, as one that the kernel does not have
	allowed
	refused // it fails with EPERM
	ruled   // its arguments decide
)

// named is a system call by name.
type named struct {
	name string
	nr   uint32
}

// rule lets through the calls whose arguments it names.
type rule struct {
	named
	text string
	code func(*program)
}

// modeCall is a call that gives a file its mode by an argument, and only when the one
// with flags says that it makes a file; -1 without such an argument.
type modeCall struct {
	named
	mode  uint32
	flags int
	// there says that the file is there already.
	there bool
}

// rule keeps set-id bits from files: in a directory of the host they would be the
// host's, with an owner that is root there. Of a file that is there already the agent is
// asked with asks, which can tell where it is.
func (m modeCall) rule(asks bool) rule {
	return rule{m.named, "no set-id bits; otherwise EPERM", func(p *program) {
		if m.flags >= 0 {
			p.low(uint32(m.flags))
			p.allowUnless(unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY)
		}
		p.low(m.mode)
		if m.there && asks {
			p.allowUnless(unix.S_ISUID | unix.S_ISGID)
			p.ret(unix.SECCOMP_RET_USER_NOTIF)
			return
		}
		p.ifAny(unix.S_ISUID|unix.S_ISGID, unix.EPERM)
	}}
}

const namespaceFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS |
	unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME

// rules are the calls of which some arguments are allowed. The calls that change what
// another process gets of the machine ask for no more than its uid, which programs can
// have in common with the agent. Huge pages are charged to no cgroup: where they are
// refused, the error is one that a kernel gives which has none left, or which does not
// know the flag.
func rules(agent Threads, asks bool) []rule {
	list := []rule{
		// The first, since programs make it most often.
		{named{"mmap", unix.SYS_MMAP}, "no MAP_HUGETLB; otherwise ENOMEM, or EINVAL of a file", func(p *program) {
			p.low(3)
			p.allowUnless(unix.MAP_HUGETLB)
			p.ifAny(unix.MAP_ANON, unix.ENOMEM)
			p.fail(unix.EINVAL)
		}},
		{named{"memfd_create", unix.SYS_MEMFD_CREATE}, "no MFD_HUGETLB; otherwise EINVAL", func(p *program) {
			p.low(1)
			p.ifAny(unix.MFD_HUGETLB, unix.EINVAL)
		}},
		{named{"shmget", unix.SYS_SHMGET}, "no SHM_HUGETLB; otherwise ENOMEM", func(p *program) {
			p.low(2)
			p.ifAny(shmHuge, unix.ENOMEM)
		}},
		{named{"clone", unix.SYS_CLONE}, "no flag of a namespace; otherwise EPERM", func(p *program) {
			p.low(0)
			p.ifAny(namespaceFlags, unix.EPERM)
		}},
		{named{"unshare", unix.SYS_UNSHARE}, "files, directory and semaphores only; otherwise EPERM", func(p *program) {
			p.low(0)
			p.ifAny(^uint32(unix.CLONE_FILES|unix.CLONE_FS|unix.CLONE_SYSVSEM), unix.EPERM)
		}},
		{named{"ioctl", unix.SYS_IOCTL}, "not TIOCSTI, TIOCLINUX, TIOCSETD, FS_IOC_FSSETXATTR or FS_IOC_SETFLAGS, which fail with EPERM", func(p *program) {
			p.low(1)
			p.ifIn(unix.EPERM, unix.TIOCSTI, tiocLinux, unix.TIOCSETD, fsSetAttributes, unix.FS_IOC_SETFLAGS, fsSetFlags32)
		}},
		{named{"prctl", unix.SYS_PRCTL}, "the options " + numbers(prctls()) + "; otherwise EINVAL", func(p *program) {
			p.low(0)
			p.ifNotIn(unix.EINVAL, prctls()...)
		}},
		{named{"socket", unix.SYS_SOCKET}, "AF_UNIX; AF_INET and AF_INET6 with the protocols 0, 1, 6, 17 and 58; AF_NETLINK with the protocol 0 (routes); otherwise EAFNOSUPPORT", func(p *program) {
			p.low(0)
			p.allowIf(unix.AF_UNIX)
			p.ifNotIn(unix.EAFNOSUPPORT, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK)
			p.branch(unix.AF_NETLINK, func() {
				p.low(2)
				p.ifNotIn(unix.EAFNOSUPPORT, unix.NETLINK_ROUTE)
			})
			p.low(2)
			p.ifNotIn(unix.EAFNOSUPPORT, 0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6)
		}},
		{named{"socketpair", unix.SYS_SOCKETPAIR}, "AF_UNIX; otherwise EAFNOSUPPORT", func(p *program) {
			p.low(0)
			p.ifNotIn(unix.EAFNOSUPPORT, unix.AF_UNIX)
		}},
		{named{"personality", unix.SYS_PERSONALITY}, "0, 8, 0x20000, 0x20008 and 0xffffffff; otherwise EPERM", func(p *program) {
			p.low(0)
			p.ifNotIn(unix.EPERM, 0, 8, 0x20000, 0x20008, 0xffffffff)
		}},
		// By each thread of a process its limits can be set, and threads of the agent come
		// and go: only 0 is sure to be the caller.
		ownOnly(named{"prlimit64", unix.SYS_PRLIMIT64}),
		// Threads name themselves when they set the policy that every thread has, as those of libzmq do.
		{named{"sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER}, "for the caller, by the number 0, and to SCHED_OTHER without flags for all; otherwise EPERM", func(p *program) {
			p.low(1)
			p.allowIf(unix.SCHED_NORMAL)
			p.low(0)
			p.ifNotIn(unix.EPERM, 0)
		}},
		ownOnly(named{"sched_setparam", unix.SYS_SCHED_SETPARAM}),
		ownOnly(named{"sched_setattr", unix.SYS_SCHED_SETATTR}),
		// Programs name their own threads here, so those of the agent are refused.
		{named{"sched_setaffinity", unix.SYS_SCHED_SETAFFINITY}, "not for the agent's threads, otherwise EPERM", func(p *program) {
			p.low(0)
			p.ifAgent(agent, unix.EPERM)
		}},
		notAgent(agent, named{"setpriority", unix.SYS_SETPRIORITY}, unix.PRIO_USER),
		notAgent(agent, named{"ioprio_set", unix.SYS_IOPRIO_SET}, ioprioUser),
	}
	for _, m := range slices.Concat(modes[:], nativeModes[:]) {
		list = append(list, m.rule(asks))
	}
	return list
}

// ownOnly is a call whose first argument is a process: the calling one alone.
func ownOnly(c named) rule {
	return rule{c, "for the caller, by the number 0; otherwise EPERM", func(p *program) {
		p.low(0)
		p.ifNotIn(unix.EPERM, 0)
	}}
}

// notAgent is a call whose first argument says of what kind the number in the second is.
// All processes of a user are refused: the agent may be one of them.
func notAgent(agent Threads, c named, user uint32) rule {
	return rule{c, "not for the agent's threads or for all processes of a user, otherwise EPERM", func(p *program) {
		p.low(0)
		p.ifIn(unix.EPERM, user)
		p.low(1)
		p.ifAgent(agent, unix.EPERM)
	}}
}

// ioprioUser is the kernel's IOPRIO_WHO_USER.
const ioprioUser = 3

const tiocLinux = 0x541c

// What would take a file out of the project that a quota holds, where root inside is root
// of the first user namespace; x/sys has no names for these.
const (
	fsSetAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	fsSetFlags32    = 0x40046602 // FS_IOC32_SETFLAGS
)

// shmHuge is the kernel's SHM_HUGETLB.
const shmHuge = 0o4000

// prctls are the options of prctl that programs have a use for.
func prctls() []uint32 {
	return []uint32{
		unix.PR_SET_PDEATHSIG, unix.PR_GET_PDEATHSIG, unix.PR_GET_DUMPABLE, unix.PR_SET_DUMPABLE, unix.PR_GET_KEEPCAPS, unix.PR_SET_KEEPCAPS,
		unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_GET_SECCOMP, unix.PR_SET_SECCOMP, unix.PR_CAPBSET_READ, unix.PR_CAPBSET_DROP,
		unix.PR_GET_SECUREBITS, unix.PR_SET_SECUREBITS, unix.PR_SET_TIMERSLACK, unix.PR_GET_TIMERSLACK, unix.PR_SET_CHILD_SUBREAPER, unix.PR_GET_CHILD_SUBREAPER,
		unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_TID_ADDRESS, unix.PR_SET_THP_DISABLE, unix.PR_GET_THP_DISABLE, unix.PR_CAP_AMBIENT,
		unix.PR_SVE_SET_VL, unix.PR_SVE_GET_VL, unix.PR_GET_SPECULATION_CTRL, unix.PR_PAC_RESET_KEYS, unix.PR_SET_TAGGED_ADDR_CTRL, unix.PR_GET_TAGGED_ADDR_CTRL,
		unix.PR_SET_PTRACER, unix.PR_SET_VMA,
	}
}

func numbers(list []uint32) string {
	list = slices.Sorted(slices.Values(list))
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, ", ")
}

// Names are the calls that programs may make, some of them not with every argument.
func Names() []string {
	var names []string
	for _, c := range slices.Concat(common[:], native[:]) {
		names = append(names, c.name)
	}
	for _, r := range rules(Threads{}, false) { // those with modes too
		names = append(names, r.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

//go:build linux

package hostrootfs

import "golang.org/x/sys/unix"

// Device is a node of /dev.
type Device struct {
	Name         string
	Major, Minor uint32
}

// Devices are the nodes of /dev that a sandbox has. Its terminals are its own.
func Devices() []Device {
	return []Device{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}
}

// AgentCaps are what the agent keeps, a bit each, in the sandbox's own user namespace:
// those of what it starts, and what it takes to mount for rules on paths and to give
// the rest up for others.
const AgentCaps uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP |
	1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_SYS_ADMIN

// AgentCaps are those of an agent of these ids. Where there is one only, the kernel asks for
// one more of who shows it to a program under another number.
func (i IDs) AgentCaps() uint64 {
	if i.Many() {
		return AgentCaps
	}
	return AgentCaps | 1<<unix.CAP_SETFCAP
}

package confine

import "golang.org/x/sys/unix"

const (
	architecture = "amd64"
	auditArch    = unix.AUDIT_ARCH_X86_64
	// foreign is where the numbers of another set of calls begin that is told by them
	// alone; 0 without another set.
	foreign = 0x4000_0000
)

// native are the calls that this architecture alone has, of those that programs may make.
var native = [...]named{
	{"access", unix.SYS_ACCESS},
	{"alarm", unix.SYS_ALARM},
	{"arch_prctl", unix.SYS_ARCH_PRCTL},
	{"chown", unix.SYS_CHOWN},
	{"dup2", unix.SYS_DUP2},
	{"epoll_create", unix.SYS_EPOLL_CREATE},
	{"epoll_wait", unix.SYS_EPOLL_WAIT},
	{"eventfd", unix.SYS_EVENTFD},
	{"fork", unix.SYS_FORK},
	{"futimesat", unix.SYS_FUTIMESAT},
	{"getdents", unix.SYS_GETDENTS},
	{"getpgrp", unix.SYS_GETPGRP},
	{"inotify_init", unix.SYS_INOTIFY_INIT},
	{"lchown", unix.SYS_LCHOWN},
	{"link", unix.SYS_LINK},
	{"lstat", unix.SYS_LSTAT},
	{"mkdir", unix.SYS_MKDIR},
	{"pause", unix.SYS_PAUSE},
	{"pipe", unix.SYS_PIPE},
	{"poll", unix.SYS_POLL},
	{"readlink", unix.SYS_READLINK},
	{"rename", unix.SYS_RENAME},
	{"rmdir", unix.SYS_RMDIR},
	{"select", unix.SYS_SELECT},
	{"signalfd", unix.SYS_SIGNALFD},
	{"stat", unix.SYS_STAT},
	{"symlink", unix.SYS_SYMLINK},
	{"time", unix.SYS_TIME},
	{"unlink", unix.SYS_UNLINK},
	{"utime", unix.SYS_UTIME},
	{"utimes", unix.SYS_UTIMES},
	{"vfork", unix.SYS_VFORK},
}

// nativeModes are those of this architecture alone.
var nativeModes = [...]modeCall{
	{named{"chmod", unix.SYS_CHMOD}, 1, -1, true},
	{named{"creat", unix.SYS_CREAT}, 1, -1, false},
	{named{"mknod", unix.SYS_MKNOD}, 1, -1, false},
	{named{"open", unix.SYS_OPEN}, 2, 1, false},
}

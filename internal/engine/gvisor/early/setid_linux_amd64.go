package early

import "syscall"

func modeCalls() []modeCall {
	return []modeCall{
		{syscall.SYS_CHMOD, 1}, {syscall.SYS_FCHMOD, 1}, {syscall.SYS_FCHMODAT, 2}, {452, 2}, // fchmodat2
		{syscall.SYS_CREAT, 1}, {syscall.SYS_OPEN, 2}, {syscall.SYS_OPENAT, 3},
		{syscall.SYS_MKNOD, 1}, {syscall.SYS_MKNODAT, 2}, {syscall.SYS_MKDIR, 1}, {syscall.SYS_MKDIRAT, 2},
	}
}

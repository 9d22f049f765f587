package early

import "syscall"

func modeCalls() []modeCall {
	return []modeCall{
		{syscall.SYS_FCHMOD, 1}, {syscall.SYS_FCHMODAT, 2}, {452, 2}, // fchmodat2
		{syscall.SYS_OPENAT, 3}, {syscall.SYS_MKNODAT, 2}, {syscall.SYS_MKDIRAT, 2},
	}
}

//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reach tries, confined and as the agent's own user, to change what the first process
// and its threads get of the machine, and prints what it could do.
func reach() error {
	runtime.LockOSThread()
	if err := confineLikeAgent(); err != nil {
		return err
	}
	threads, err := filepath.Glob("/proc/1/task/[0-9]*")
	if err != nil {
		return err
	}
	if len(threads) == 0 {
		return fmt.Errorf("the first process has no threads in /proc")
	}
	for _, dir := range threads {
		tid, err := parseNumber(filepath.Base(dir))
		if err != nil {
			return err
		}
		var none unix.Rlimit
		var param int32
		const idle = 5 // SCHED_IDLE
		for name, errno := range map[string]unix.Errno{
			"prlimit64":          try(unix.SYS_PRLIMIT64, tid, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&none)), 0),
			"sched_setscheduler": try(unix.SYS_SCHED_SETSCHEDULER, tid, idle, uintptr(unsafe.Pointer(&param)), 0),
			"sched_setparam":     try(unix.SYS_SCHED_SETPARAM, tid, uintptr(unsafe.Pointer(&param)), 0, 0),
		} {
			if errno == 0 {
				fmt.Println(name, "of", tid)
			}
		}
		for _, dir := range []string{dir, fmt.Sprintf("/proc/%d", tid)} {
			for _, name := range []string{"oom_score_adj", "oom_adj", "autogroup", "coredump_filter", "clear_refs", "timerslack_ns", "sched", "comm", "mem"} {
				if f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
					f.Close()
					fmt.Println("opened", filepath.Join(dir, name))
				}
			}
		}
	}
	mask := ^uint64(0)
	for name, errno := range map[string]unix.Errno{
		"sched_setaffinity":        try(unix.SYS_SCHED_SETAFFINITY, 1, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)), 0),
		"setpriority":              try(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 1, 19, 0),
		"setpriority of the group": try(unix.SYS_SETPRIORITY, unix.PRIO_PGRP, 1, 19, 0),
		"setpriority of the user":  try(unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 19, 0),
		"ioprio_set":               try(unix.SYS_IOPRIO_SET, 1, 1, 3<<13, 0),
	} {
		if errno == 0 {
			fmt.Println(name)
		}
	}
	return nil
}

func parseNumber(text string) (n uintptr, err error) {
	_, err = fmt.Sscan(text, &n)
	return n, err
}

func try(nr, a, b, c, d uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall6(nr, a, b, c, d, 0, 0)
	return errno
}

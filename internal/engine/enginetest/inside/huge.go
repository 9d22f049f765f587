//go:build linux

package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugeSize = 2 << 20
	shmHuge  = 0o4000 // the kernel's SHM_HUGETLB
)

// huge takes a huge page by each call that gives one, and says which gave it. Confined, it
// does so behind the filter of what an agent starts on the host's own kernel.
func huge(confined bool) error {
	runtime.LockOSThread()
	if confined {
		if err := confineLikeAgent(); err != nil {
			return err
		}
	}
	var got []string
	gave := func(name string, err error) {
		if err == nil {
			got = append(got, name)
		}
	}
	for _, size := range []int{0, unix.MAP_HUGE_2MB} {
		gave("mmap", hugeMemory(-1, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB|size))
		gave("shared mmap", hugeMemory(-1, unix.MAP_SHARED|unix.MAP_ANON|unix.MAP_HUGETLB|size))
		fd, err := unix.MemfdCreate("huge", unix.MFD_HUGETLB|size)
		if err == nil {
			err = hugeMemory(fd, unix.MAP_SHARED)
			_ = unix.Close(fd)
		}
		gave("memfd_create", err)
		gave("shmget", hugeSegment(size))
	}
	if confined { // otherwise it would be the host's
		gave("hugetlbfs", unix.Mount("none", "/tmp", "hugetlbfs", 0, ""))
	}
	if len(got) > 0 {
		return errors.New("huge pages by " + strings.Join(got, ", "))
	}
	// What there is otherwise goes on.
	if err := hugeMemory(-1, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return fmt.Errorf("ordinary memory: %w", err)
	}
	return nil
}

// hugeMemory maps and writes one page's worth of memory.
func hugeMemory(fd, flags int) error {
	b, err := unix.Mmap(fd, 0, hugeSize, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	b[0] = 1
	return unix.Munmap(b)
}

func hugeSegment(size int) error {
	id, _, errno := unix.Syscall(unix.SYS_SHMGET, unix.IPC_PRIVATE, hugeSize, uintptr(unix.IPC_CREAT|0o600|shmHuge|size))
	if errno != 0 {
		return errno
	}
	at, _, errno := unix.Syscall(unix.SYS_SHMAT, id, 0, 0)
	if errno == 0 {
		*(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))) = 1
		_, _, _ = unix.Syscall(unix.SYS_SHMDT, at, 0, 0)
	}
	_, _, _ = unix.Syscall(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

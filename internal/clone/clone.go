//go:build linux

// Package clone starts processes that share this one's memory and have a stack of their own. No
// page table is copied, so a start takes the same time whatever the size of this process.
//
// Such a child is no process of the Go runtime: what it runs is nosplit, makes raw system calls
// only, and uses memory outside of the Go heap, which stays mapped until the child has executed a
// program or is dead. Signals are blocked in the child.
package clone

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Args are the arguments of clone3 in the kernel's layout.
type Args struct {
	Flags, PidFD, ChildTID, ParentTID, ExitSignal, Stack, StackSize, TLS, SetTID, SetTIDSize, Cgroup uint64
}

// The size of Args in its first version, and with the cgroup.
const (
	firstSize = 64
	wholeSize = unsafe.Sizeof(Args{})
)

// clone3 calls clone3. The child calls entry with child on the stack in args.
//
//go:noescape
func clone3(args *Args, size, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)

// clone calls clone, whose flags a filter can see. The child calls entry with child on the stack
// that ends at stack.
//
//go:noescape
func clone(flags, stack, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// Clone3 starts a process that shares the memory and calls main with child. It has none of the
// signal handlers, which would run on its stack. main is nosplit and never returns.
//
//go:norace
func Clone3[T any](args Args, main func(*T), child *T) (pid int, err error) {
	args.Flags |= unix.CLONE_VM | unix.CLONE_CLEAR_SIGHAND
	args.ExitSignal = uint64(unix.SIGCHLD)
	size := uintptr(firstSize)
	if args.Flags&unix.CLONE_INTO_CGROUP != 0 {
		size = wholeSize
	}
	entry := **(**uintptr)(unsafe.Pointer(&main)) // a func value points to its code's address
	beforeFork()
	n, errno := clone3(&args, size, entry, unsafe.Pointer(child))
	afterFork()
	if errno != 0 {
		return 0, os.NewSyscallError("clone3", syscall.Errno(errno))
	}
	return int(n), nil
}

// Clone is Clone3 by the older call, for a child that takes the signal handlers away itself. The
// stack grows down from the end of mem.
//
//go:norace
func Clone[T any](mem []byte, main func(*T), child *T) (pid int, err error) {
	entry := **(**uintptr)(unsafe.Pointer(&main)) // a func value points to its code's address
	stack := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) + uintptr(len(mem))
	beforeFork()
	n, errno := clone(unix.CLONE_VM|uintptr(unix.SIGCHLD), stack, entry, unsafe.Pointer(child))
	afterFork()
	if errno != 0 {
		return 0, os.NewSyscallError("clone", syscall.Errno(errno))
	}
	return int(n), nil
}

//go:build linux

package native

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/clone"
)

// child is what becomes the first process of a sandbox: a process that shares this
// one's memory, has a stack, descriptors and namespaces of its own, makes the system
// calls of a script one after the other, the last of which executes the agent. So
// there is no program between this one and the agent, and no copy of this one's
// page tables, whatever its size.
//
// Everything it runs is nosplit and makes raw system calls only: it has no
// goroutine and no thread of the Go runtime's own. The memory is outside of the Go
// heap and is given back when the child has executed or is dead.
type child struct {
	calls  *call
	number uintptr
	pidfd  int32 // written by the kernel

	// Written by the child.
	at      uintptr // the call that it is at
	errno   syscall.Errno
	results [maxSlots]uintptr
}

const (
	maxSlots  = 512
	childSize = 1 << 20
	stackSize = 16 << 10
)

// call is one system call.
type call struct {
	nr   uintptr
	args [6]uintptr
	// refs has a bit for each argument that is the number of a result.
	refs uint8
	// save is the result that gets the return value; negative discards it.
	save int16
	// skip is how many of the calls that follow are left out after a failure; without
	// lenient a failure ends the child.
	skip    uint8
	lenient bool
	// want is what the call must return; negative is anything.
	want int8
}

// fork starts the script in new namespaces. Signals are blocked in the child until
// the script lets them in. A negative cgroup is this process's own. The descriptor
// is the child's pidfd.
func (s *script) fork(flags uint64, cgroup int) (pid, pidfd int, err error) {
	c := s.child()
	args := clone.Args{
		Flags: flags | unix.CLONE_PIDFD, PidFD: uint64(uintptr(unsafe.Pointer(&c.pidfd))),
		Stack: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))) + childSize - stackSize, StackSize: stackSize,
	}
	if cgroup >= 0 {
		args.Flags |= unix.CLONE_INTO_CGROUP
		args.Cgroup = uint64(cgroup)
	}
	pid, err = clone.Clone3(args, childMain, c)
	if err != nil {
		return 0, -1, err
	}
	return pid, int(c.pidfd), nil
}

// childMain is the child's whole life.
//
//go:norace
//go:nosplit
//go:nocheckptr
func childMain(c *child) {
	for n := uintptr(0); n < c.number; n++ {
		x := (*call)(unsafe.Add(unsafe.Pointer(c.calls), n*unsafe.Sizeof(call{})))
		c.at = n
		var a [6]uintptr
		for i := range a {
			a[i] = x.args[i]
			if x.refs>>uint(i)&1 != 0 {
				a[i] = c.results[a[i]%maxSlots]
			}
		}
		r, _, e := syscall.RawSyscall6(x.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if e == 0 && x.want >= 0 && r != uintptr(x.want) {
			e = unix.EPIPE
		}
		if e != 0 {
			if !x.lenient {
				c.errno = e
				break
			}
			n += uintptr(x.skip)
			continue
		}
		if x.save >= 0 {
			c.results[uintptr(x.save)%maxSlots] = r
		}
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// script is a list of system calls and the memory that they use.
type script struct {
	mem   []byte
	used  uintptr // of mem, from its beginning; the end is the stack
	calls []call
	names []string // what each call is for
	now   string
	slots int16
	err   error
}

// slot is a result of an earlier call, as an argument.
type slot int16

func newScript() (*script, error) {
	mem, err := unix.Mmap(-1, 0, childSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map memory of the child: %w", err)
	}
	return &script{mem: mem, used: unsafe.Sizeof(child{})}, nil
}

// free gives the memory back. Nothing may run the script any more.
func (s *script) free() {
	if s.mem != nil {
		_ = unix.Munmap(s.mem)
		s.mem = nil
	}
}

func (s *script) base() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s.mem)) }
func (s *script) child() *child        { return (*child)(s.base()) }

// close ends the script: it can be forked.
func (s *script) close() error {
	size := unsafe.Sizeof(call{})
	at := s.reserve(size * uintptr(len(s.calls)))
	if s.err != nil {
		return s.err
	}
	to := unsafe.Slice((*call)(unsafe.Add(s.base(), at)), len(s.calls))
	copy(to, s.calls)
	*s.child() = child{calls: unsafe.SliceData(to), number: uintptr(len(to))}
	return nil
}

// reserve reserves memory, aligned to 16 bytes, and returns where it is.
func (s *script) reserve(n uintptr) uintptr {
	at := (s.used + 15) &^ 15
	if at+n > childSize-stackSize {
		if s.err == nil {
			s.err = fmt.Errorf("a plan of this size is more than %d bytes of system calls: %w", childSize, unix.E2BIG)
		}
		return 0
	}
	s.used = at + n
	return at
}

// bytes puts b into the child's memory and returns its address there.
func (s *script) bytes(b []byte) uintptr {
	at := s.reserve(uintptr(len(b)))
	if s.err != nil {
		return 0
	}
	copy(s.mem[at:], b)
	return uintptr(s.base()) + at
}

func (s *script) text(t string) uintptr { return s.bytes(append([]byte(t), 0)) }

// vector is a list of strings with a nil at its end.
func (s *script) vector(list []string) uintptr {
	at := s.reserve(uintptr(len(list)+1) * unsafe.Sizeof(uintptr(0)))
	if s.err != nil {
		return 0
	}
	out := unsafe.Slice((*uintptr)(unsafe.Add(s.base(), at)), len(list)+1)
	for i, t := range list {
		out[i] = s.text(t)
	}
	out[len(list)] = 0
	return uintptr(s.base()) + at
}

// do adds a call that must succeed. Arguments are numbers, strings, bytes and slots.
func (s *script) do(nr uintptr, args ...any) { s.add(nr, args) }

// try adds a call that may fail.
func (s *script) try(nr uintptr, args ...any) { s.add(nr, args).lenient = true }

// get adds a call that must succeed and returns its result.
func (s *script) get(nr uintptr, args ...any) slot {
	c := s.add(nr, args)
	c.save = s.slot()
	return slot(c.save)
}

func (s *script) slot() int16 {
	if s.slots++; s.slots >= maxSlots {
		s.slots, s.err = 1, fmt.Errorf("a plan of this size is more than %d results: %w", maxSlots, unix.E2BIG)
	}
	return s.slots
}

// optional adds what first says, and when that fails leaves out what then adds.
func (s *script) optional(first func(), then func()) {
	first()
	n := len(s.calls)
	s.calls[n-1].lenient = true
	then()
	s.calls[n-1].skip = uint8(len(s.calls) - n)
}

func (s *script) add(nr uintptr, args []any) *call {
	c := call{nr: nr, save: -1, want: -1}
	for i, a := range args {
		switch v := a.(type) {
		case int:
			c.args[i] = uintptr(v)
		case uintptr:
			c.args[i] = v
		case string:
			c.args[i] = s.text(v)
		case []byte:
			c.args[i] = s.bytes(v)
		case slot:
			c.args[i] = uintptr(v)
			c.refs |= 1 << uint(i)
		default:
			s.err = fmt.Errorf("argument of type %T", a)
		}
	}
	s.calls = append(s.calls, c)
	s.names = append(s.names, s.now)
	return &s.calls[len(s.calls)-1]
}

// stepError is the call of a script that failed.
type stepError struct {
	what string
	err  error
}

func (e *stepError) Error() string { return e.what + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// failure is what ended a child that has not executed the agent.
func (s *script) failure() error {
	c := s.child()
	if c.errno == 0 || c.at >= uintptr(len(s.names)) {
		return nil
	}
	return &stepError{s.names[c.at], c.errno}
}

//go:build linux

package launcher

import (
	"fmt"
	"math"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/clone"
)

// MaxLimits is how many cgroups of the engine's a launcher joins.
const MaxLimits = 4

// Launcher is a process that has been forked already and waits to be told what
// to execute, so that a start costs one execve. It shares the agent's memory
// (the agent is not dumpable, so no one else sees it) and has its own stack,
// descriptors and signal dispositions. Before it waits it has closed all other
// descriptors; it takes its weaker identity when it is told what to execute.
//
// Everything a launcher runs is nosplit and makes raw system calls only: it has
// no goroutine and no thread of the Go runtime's own.
//
// The memory of a launcher is outside of the Go heap. The parent fills the
// fields of a start before it writes to the command pipe, keeps what they point
// to alive until the launcher has ended or executed, and then reads the outcome.
type Launcher struct {
	// Set before the fork.
	Holder  bool  // only keeps a user namespace, until command's other end closes
	Opens   *byte // only opens this, with the agent's descriptors, and waits for its end; may be nil
	UserNS  int32 // -1: none
	Stdin   int32
	Stdout  int32
	Stderr  int32
	Command int32
	Outcome int32
	Keep    [3]int32 // userNS, command and outcome, sorted
	// GroupFDs are the files that 0 is written to; -1 is unused.
	GroupFDs [MaxLimits]int32
	handlers bool // the agent's are to be taken away
	NoFile   unix.Rlimit
	SetCaps  bool
	Bound    uint64 // the capabilities of the bounding set, with setCaps
	action   SigAction

	// Set before the command.
	Tty      *byte // path of the terminal, nil for none
	HasTTY   bool  // standard input is the terminal, without Tty
	Combined bool
	SetIDs   bool
	UID, GID uintptr
	Groups   *uint32
	NGroups  uintptr
	Caps     uint64
	Cwd      *byte
	Paths    **byte // candidates, nil at the end
	Argv     **byte
	Env      **byte

	// Written by the launcher.
	Stage Stage
	Errno syscall.Errno
	mask  uint64
	byte_ [8]byte
	hdr   unix.CapUserHeader
	data  [2]unix.CapUserData
}

// Stage says how far a launcher came.
type Stage uint32

const (
	StageParking Stage = iota
	StageParked
	stageTerminal
	StageIDs
	stageCaps
	StageCwd
	StageExec
	StageFailed // added to the stage that failed
)

// SigAction is the kernel's struct, the handler first: zeros are the default disposition.
type SigAction [4]uint64

const (
	launcherMemory = 32 << 10
	// keptCaps are what uid 0 has inside: enough to install packages, change
	// owners and serve low ports; nothing that mounts, traces, makes devices,
	// loads code into the kernel, reconfigures the network or gives a file
	// capabilities, which in a directory of the host the host would honour.
	keptCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP |
		1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_AUDIT_WRITE
	// SharedCaps are keptCaps on a kernel that the sandbox shares with the host. There a
	// set-id file in a directory of the host loses its bits when its content changes, but
	// not for a writer with FSETID; no program can set the bits, so none needs it.
	SharedCaps = keptCaps &^ (1 << unix.CAP_FSETID)
	// OwnCaps are keptCaps on gVisor's kernel, which gives no file capabilities, also
	// not for the host. A user namespace in which uid 0 is mapped needs the capability.
	OwnCaps     = keptCaps | 1<<unix.CAP_SETFCAP
	CapVersion3 = 0x20080522
	LastSignal  = 64
	SigIgnore   = 1
	// IgnoredSignals would end or stop the agent.
	IgnoredSignals = 1<<unix.SIGTERM | 1<<unix.SIGINT | 1<<unix.SIGHUP | 1<<unix.SIGQUIT | 1<<unix.SIGPIPE | 1<<unix.SIGUSR1 |
		1<<unix.SIGUSR2 | 1<<unix.SIGALRM | 1<<unix.SIGTSTP | 1<<unix.SIGTTIN | 1<<unix.SIGTTOU
	// GuardedSignals are those for which a first process of a namespace has no handler, or
	// gives up the runtime's: faults, and two that the runtime leaves alone.
	GuardedSignals = 1<<unix.SIGILL | 1<<unix.SIGTRAP | 1<<unix.SIGBUS | 1<<unix.SIGFPE | 1<<unix.SIGSEGV | 1<<unix.SIGSTKFLT | 1<<unix.SIGSYS |
		1<<32 | 1<<34
)

// NewMemory maps the memory of one launcher: the struct, then its stack.
func NewMemory() (*Launcher, []byte, error) {
	mem, err := unix.Mmap(-1, 0, launcherMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("map launcher: %w", err)
	}
	return (*Launcher)(unsafe.Pointer(unsafe.SliceData(mem))), mem, nil
}

// Fork makes the launcher's process. Signals stay blocked in it until it
// executes.
func (l *Launcher) Fork(mem []byte) (int, error) { return l.ForkWith(mem, 0) }

// ForkWith is Fork with flags of clone3, such as those of new namespaces.
func (l *Launcher) ForkWith(mem []byte, flags uint64) (int, error) {
	return clone.Clone3(clone.Args{
		Flags: flags, Stack: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), StackSize: uint64(len(mem)),
	}, launcherMain, l)
}

// launcherMain is the launcher's whole life.
//
//go:norace
//go:nosplit
//go:nocheckptr
func launcherMain(l *Launcher) {
	if l.Opens != nil {
		l.open()
	}
	if l.Holder {
		syscall.RawSyscall(unix.SYS_CLOSE, uintptr(l.Outcome), 0, 0)
	} else {
		l.park()
	}
	var n uintptr
	for {
		var e syscall.Errno
		n, _, e = syscall.RawSyscall(unix.SYS_READ, uintptr(l.Command), uintptr(unsafe.Pointer(&l.byte_)), 1)
		if e != unix.EINTR {
			break
		}
	}
	if n == 1 {
		l.execute()
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// park does all that does not depend on what is started.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) park() {
	if l.handlers {
		for sig := uintptr(1); sig <= LastSignal; sig++ {
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&l.action)), 0, 8, 0, 0)
		}
	}
	// What the agent ignores would stay ignored.
	for sig := uintptr(1); sig <= LastSignal; sig++ {
		if uint64(IgnoredSignals|GuardedSignals)>>sig&1 != 0 {
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&l.action)), 0, 8, 0, 0)
		}
	}
	for i := range l.GroupFDs {
		if fd := l.GroupFDs[i]; fd >= 0 {
			l.byte_[0] = '0'
			if _, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&l.byte_)), 1); e != 0 {
				l.fail(StageParking, e)
			}
		}
	}
	l.dup(l.Stdin, 0)
	l.dup(l.Stdout, 1)
	l.dup(l.Stderr, 2)
	next := uintptr(3)
	for i := range l.Keep {
		if fd := l.Keep[i]; fd >= 3 {
			l.closeRange(next, uintptr(fd)-1)
			next = uintptr(fd) + 1
		}
	}
	l.closeRange(next, math.MaxInt32)
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&l.NoFile)), 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	l.Stage = StageParked
}

//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) dup(from int32, to uintptr) {
	if _, _, e := syscall.RawSyscall(unix.SYS_DUP3, uintptr(from), to, 0); e != 0 {
		l.fail(StageParking, e)
	}
}

//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) closeRange(first, last uintptr) {
	if first > last {
		return
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_CLOSE_RANGE, first, last, 0); e == 0 {
		return
	}
	for fd := first; fd <= last && fd < 1<<16; fd++ {
		syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
}

// execute becomes the program.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) execute() {
	if l.Tty != nil {
		l.terminal()
	} else if l.HasTTY {
		if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			l.fail(stageTerminal, e)
		}
	} else if l.Combined {
		syscall.RawSyscall(unix.SYS_DUP3, 1, 2, 0)
	}
	l.weaken()
	if l.SetIDs {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, l.NGroups, uintptr(unsafe.Pointer(l.Groups)), 0); e != 0 {
			l.fail(StageIDs, e)
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, l.GID, l.GID, l.GID); e != 0 {
			l.fail(StageIDs, e)
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, l.UID, l.UID, l.UID); e != 0 {
			l.fail(StageIDs, e)
		}
	}
	if l.SetCaps {
		l.hdr = unix.CapUserHeader{Version: CapVersion3}
		for i := range l.data {
			half := uint32(l.Caps >> (32 * uint(i)))
			l.data[i] = unix.CapUserData{Effective: half, Permitted: half}
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&l.hdr)), uintptr(unsafe.Pointer(&l.data)), 0); e != 0 {
			l.fail(stageCaps, e)
		}
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(l.Cwd)), 0, 0); e != 0 {
		l.fail(StageCwd, e)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&l.mask)), 0, 8, 0, 0)
	l.Stage = StageExec
	failure := unix.ENOENT
	for p := l.Paths; *p != nil; p = (**byte)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(p))) {
		_, _, e := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(*p)), uintptr(unsafe.Pointer(l.Argv)), uintptr(unsafe.Pointer(l.Env)))
		if e == unix.ENOENT || e == unix.ENOTDIR {
			continue
		}
		// Like a shell: what may not be executed does not hide what comes later
		// in PATH.
		failure = e
		if e != unix.EACCES {
			break
		}
	}
	l.fail(StageExec, failure)
}

// weaken leaves the agent's user namespace and its bounding set. Not before a
// start: until then no process can signal the launcher.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) weaken() {
	if l.UserNS >= 0 {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETNS, uintptr(l.UserNS), unix.CLONE_NEWUSER, 0); e != 0 {
			l.fail(StageIDs, e)
		}
	}
	if l.SetCaps {
		syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
		for c := uintptr(0); c < 64; c++ {
			if l.Bound>>c&1 != 0 {
				continue
			}
			if _, _, e := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0, 0); e != 0 {
				if e != unix.EINVAL {
					l.fail(stageCaps, e)
				}
				break // past the last capability of this kernel
			}
		}
	}
}

// terminal makes the terminal the launcher's controlling one and its stdio.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) terminal() {
	at := unix.AT_FDCWD
	fd, _, e := syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(l.Tty)), unix.O_RDWR|unix.O_NOCTTY, 0, 0, 0)
	if e != 0 {
		l.fail(stageTerminal, e)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, fd, unix.TIOCSCTTY, 0); e != 0 {
		l.fail(stageTerminal, e)
	}
	for to := uintptr(0); to < 3; to++ {
		if _, _, e := syscall.RawSyscall(unix.SYS_DUP3, fd, to, 0); e != 0 {
			l.fail(stageTerminal, e)
		}
	}
	syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
}

// fail records what went wrong and ends the launcher.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) fail(at Stage, e syscall.Errno) {
	l.Errno = e
	l.Stage = StageFailed + at
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// ForkConfined is Fork by the older call, whose flags a filter can see: the child takes the
// handlers of the agent's signals away itself, before any can come.
func (l *Launcher) ForkConfined(mem []byte) (int, error) {
	l.handlers = true
	return clone.Clone(mem, launcherMain, l)
}

// open is the whole life of the first process of a namespace.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (l *Launcher) open() {
	at := unix.AT_FDCWD
	fd, _, e := syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(l.Opens)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e == 0 {
		l.UserNS = int32(fd)
	} else {
		l.Errno = e
	}
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(l.Outcome), uintptr(unsafe.Pointer(&l.byte_)), 1)
	for { // until it is killed
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

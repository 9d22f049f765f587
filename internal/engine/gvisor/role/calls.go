//go:build linux

package role

import (
	"encoding/binary"
	"maps"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// place is which of a call's arguments say where.
type place struct {
	// dir and path are the numbers of arguments; -1 is absent. Without a path, dir is
	// the file itself.
	dir, path int
	// follow says whether a symlink at the end is followed; nil is no.
	follow func(arch.SyscallArguments) bool
	// socket: path is a socket's address, and the argument after it its length.
	socket bool
	// shared: the file stays where it is, and gets another name.
	shared bool
}

// call is a system call that takes a path or changes what one leads to.
type call struct {
	op     string
	places []place
	// change is whether it would change something.
	change func(*kernel.Task, arch.SyscallArguments) bool
	// early: what is wrong with the path is found when the call is over already, so
	// that the guard has to ask before.
	early bool
	// quiet: it asks, and does nothing that would be worth a note.
	quiet bool
}

const nofollow = linux.AT_SYMLINK_NOFOLLOW

func always(*kernel.Task, arch.SyscallArguments) bool { return true }
func never(*kernel.Task, arch.SyscallArguments) bool  { return false }
func follows(arch.SyscallArguments) bool              { return true }

// unless follows but where a flag says no, and where says follows where a flag
// says yes.
func unless(arg int, flag uint32) func(arch.SyscallArguments) bool {
	return func(a arch.SyscallArguments) bool { return a[arg].Uint()&flag == 0 }
}

func where(arg int, flag uint32) func(arch.SyscallArguments) bool {
	return func(a arch.SyscallArguments) bool { return a[arg].Uint()&flag != 0 }
}

func at(dir, path int) place       { return place{dir: dir, path: path} }
func followed(dir, path int) place { return place{dir: dir, path: path, follow: follows} }
func flagged(dir, path int, f func(arch.SyscallArguments) bool) place {
	return place{dir: dir, path: path, follow: f}
}
func file(fd int) place { return place{dir: fd, path: -1} }

// writes is whether flags open a file for more than reading.
func writes(flags uint64) bool {
	return flags&linux.O_PATH == 0 && (flags&linux.O_ACCMODE != linux.O_RDONLY || flags&(linux.O_CREAT|linux.O_TRUNC) != 0)
}

func opens(arg int) func(*kernel.Task, arch.SyscallArguments) bool {
	return func(_ *kernel.Task, a arch.SyscallArguments) bool { return writes(uint64(a[arg].Uint())) }
}

// how is what openat2 is asked for.
func how(t *kernel.Task, a arch.SyscallArguments) bool {
	var b [8]byte
	if _, err := t.CopyInBytes(a[2].Pointer(), b[:]); err != nil {
		return false
	}
	return writes(binary.LittleEndian.Uint64(b[:]))
}

// calls are by their names in gVisor's tables, which are the same for every
// architecture.
func calls() map[string]call {
	changes := func(op string, p ...place) call { return call{op: op, places: p, change: always} }
	named := func(dir, path int) place {
		p := at(dir, path)
		p.shared = true
		return p
	}
	linked := flagged(0, 1, where(4, linux.AT_SYMLINK_FOLLOW))
	linked.shared = true
	bound := place{dir: -1, path: 1, socket: true}
	all := map[string]call{
		"open":    {op: "open", places: []place{flagged(-1, 0, unless(1, linux.O_NOFOLLOW))}, change: opens(1)},
		"openat":  {op: "open", places: []place{flagged(0, 1, unless(2, linux.O_NOFOLLOW))}, change: opens(2)},
		"openat2": {op: "open", places: []place{followed(0, 1)}, change: how},
		"creat":   changes("open", followed(-1, 0)),

		"truncate":  changes("truncate", followed(-1, 0)),
		"mkdir":     changes("mkdir", at(-1, 0)),
		"mkdirat":   changes("mkdir", at(0, 1)),
		"mknod":     changes("mknod", at(-1, 0)),
		"mknodat":   changes("mknod", at(0, 1)),
		"rmdir":     changes("remove", at(-1, 0)),
		"unlink":    changes("remove", at(-1, 0)),
		"unlinkat":  changes("remove", at(0, 1)),
		"rename":    changes("rename", at(-1, 0), at(-1, 1)),
		"renameat":  changes("rename", at(0, 1), at(2, 3)),
		"renameat2": changes("rename", at(0, 1), at(2, 3)),
		"link":      changes("link", named(-1, 0), at(-1, 1)),
		"linkat":    changes("link", linked, at(2, 3)),
		"symlink":   changes("symlink", at(-1, 1)),
		"symlinkat": changes("symlink", at(1, 2)),
		"bind":      changes("bind", bound),

		"chmod":     changes("chmod", followed(-1, 0)),
		"fchmod":    changes("chmod", file(0)),
		"fchmodat":  changes("chmod", followed(0, 1)),
		"fchmodat2": changes("chmod", flagged(0, 1, unless(3, nofollow))),
		"chown":     changes("chown", followed(-1, 0)),
		"lchown":    changes("chown", at(-1, 0)),
		"fchown":    changes("chown", file(0)),
		"fchownat":  changes("chown", flagged(0, 1, unless(4, nofollow))),
		"utime":     changes("utimes", followed(-1, 0)),
		"utimes":    changes("utimes", followed(-1, 0)),
		"futimesat": changes("utimes", followed(0, 1)),
		"utimensat": changes("utimes", flagged(0, 1, unless(3, nofollow))),

		"setxattr":     changes("setxattr", followed(-1, 0)),
		"lsetxattr":    changes("setxattr", at(-1, 0)),
		"fsetxattr":    changes("setxattr", file(0)),
		"removexattr":  changes("removexattr", followed(-1, 0)),
		"lremovexattr": changes("removexattr", at(-1, 0)),
		"fremovexattr": changes("removexattr", file(0)),
	}
	maps.Copy(all, looks())
	return all
}

// looks are the calls that change nothing, and are refused where no program may look.
func looks() map[string]call {
	runs := func(p place) call { return call{op: "exec", places: []place{p}, change: never, early: true} }
	looks := func(op string, p ...place) call { return call{op: op, places: p, change: never} }
	asks := func(arg int, p place) call {
		return call{op: "access", places: []place{p}, quiet: true, change: func(_ *kernel.Task, a arch.SyscallArguments) bool {
			return a[arg].Uint()&unix.W_OK != 0
		}}
	}
	reached := place{dir: -1, path: 1, socket: true, follow: follows}
	return map[string]call{
		"access":     asks(1, followed(-1, 0)),
		"faccessat":  asks(2, followed(0, 1)),
		"faccessat2": asks(2, flagged(0, 1, unless(3, nofollow))),

		"stat":              looks("stat", followed(-1, 0)),
		"lstat":             looks("stat", at(-1, 0)),
		"newfstatat":        looks("stat", flagged(0, 1, unless(3, nofollow))),
		"statx":             looks("stat", flagged(0, 1, unless(2, nofollow))),
		"statfs":            looks("stat", followed(-1, 0)),
		"readlink":          looks("readlink", at(-1, 0)),
		"readlinkat":        looks("readlink", at(0, 1)),
		"getxattr":          looks("getxattr", followed(-1, 0)),
		"lgetxattr":         looks("getxattr", at(-1, 0)),
		"listxattr":         looks("getxattr", followed(-1, 0)),
		"llistxattr":        looks("getxattr", at(-1, 0)),
		"chdir":             looks("chdir", followed(-1, 0)),
		"fchdir":            looks("chdir", file(0)),
		"chroot":            looks("chdir", followed(-1, 0)),
		"execve":            runs(followed(-1, 0)),
		"execveat":          runs(flagged(0, 1, unless(4, nofollow))),
		"inotify_add_watch": looks("watch", followed(-1, 1)),
		"connect":           looks("connect", reached),
	}
}

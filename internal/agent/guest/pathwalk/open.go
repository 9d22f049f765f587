//go:build linux

package pathwalk

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens a file without following /proc's links and without waiting for a
// FIFO's other end.
func Open(name string, flags int, mode uint32) (*os.File, error) {
	return OpenAt(unix.AT_FDCWD, name, flags, mode)
}

// OpenAt is open of a name in an open directory.
func OpenAt(at int, name string, flags int, mode uint32) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := unix.Openat2(at, name, how)
	if err == unix.ENOSYS {
		fd, err = unix.Openat(at, name, int(how.Flags), mode)
	}
	if err != nil {
		return nil, err
	}
	if err := CheckAllowed(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// CheckAllowed refuses the files of the agent in /proc, writes to /proc, and masks.
func CheckAllowed(fd int) error {
	var at unix.Stat_t
	if err := unix.Fstat(fd, &at); err == nil && IsMask(&at) {
		return unix.EACCES
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	where, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	own := "/proc/" + strconv.Itoa(os.Getpid())
	if flags&unix.O_ACCMODE != unix.O_RDONLY || where == own || strings.HasPrefix(where, own+"/") {
		return unix.EACCES
	}
	return nil
}

// Fstat describes an open file.
func Fstat(f *os.File, st *unix.Stat_t) error {
	return WithFD(f, func(fd int) error { return unix.Fstat(fd, st) })
}

// WithFD runs fn with the descriptor of f.
func WithFD(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = fn(int(fd)) })
	return errors.Join(err, inner)
}

// ResolveLinks follows links at the end of name, so that the file a link points to is
// replaced and not the link. A link whose end is missing resolves to that end.
func ResolveLinks(name string) (string, *unix.Stat_t, error) {
	if strings.HasSuffix(name, "/") {
		return "", nil, unix.EISDIR
	}
	for range 40 {
		var st unix.Stat_t
		err := unix.Lstat(name, &st)
		if errors.Is(err, unix.ENOENT) {
			return name, nil, err
		}
		if err != nil {
			return "", nil, err
		}
		// Nothing of /proc is written, and no link of it is followed.
		var fs unix.Statfs_t
		if err := unix.Statfs(path.Dir(name), &fs); err == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			return "", nil, unix.EACCES
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return name, &st, nil
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", nil, err
		}
		if !strings.HasPrefix(to, "/") {
			// Not cleaned: .. after a link is the kernel's to resolve.
			to = name[:strings.LastIndexByte(name, '/')+1] + to
		}
		name = to
	}
	return "", nil, unix.ELOOP
}

// ProcFD names an open file for calls that take a path only.
func ProcFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// IsKernelFile is true for a file that a kernel makes up.
func IsKernelFile(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) != nil || st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC
}

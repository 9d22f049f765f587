//go:build linux

package pidfd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// RawFD returns the descriptor without making it blocking, as File.Fd would. Who holds
// f open holds the number.
func RawFD(f *os.File) uintptr {
	var n uintptr
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = fd })
	}
	return n
}

// Socket makes a stream socket and binds or connects it to path, of any length: the
// address names it by a descriptor of its directory. The descriptor is the caller's.
func Socket(path string, do func(int, unix.Sockaddr) error) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := Name(fd, path, do); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Name is Socket for a socket that there is already. It stays the caller's.
func Name(fd int, path string, do func(int, unix.Sockaddr) error) error {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	return do(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(dir) + "/" + filepath.Base(path)})
}

// ConfigPipe is a pipe that holds an agent's configuration and then ends. Unlike a file
// it can be read once only. The descriptor is the caller's.
func ConfigPipe(config []byte) (int, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	defer func() { _ = unix.Close(fds[1]) }()
	var err error
	if len(config) > 16<<10 {
		_, err = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, len(config))
	}
	if err == nil {
		_, err = unix.Write(fds[1], config)
	}
	if err != nil {
		_ = unix.Close(fds[0])
		return -1, fmt.Errorf("write configuration: %w", err)
	}
	return fds[0], nil
}

// Write writes one of the kernel's control files, which is there already, by one write.
// It asks the kernel three times: the runtime would ask seven times, for a file that can
// be polled.
func Write(dir, name, value string) error {
	path := filepath.Join(dir, name)
	fd, err := OpenControl(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	n, err := ignoringEINTR(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if err == nil && n < len(value) {
		err = io.ErrShortWrite
	}
	if err != nil {
		err = &os.PathError{Op: "write", Path: path, Err: err}
	}
	if cerr := unix.Close(fd); err == nil && cerr != nil {
		err = &os.PathError{Op: "close", Path: path, Err: cerr}
	}
	return err
}

// OpenControl opens one of the kernel's control files, for who reads or writes it raw.
func OpenControl(path string, flags int) (int, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func ignoringEINTR(do func() (int, error)) (int, error) {
	for {
		n, err := do()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// ErrText is an error without the path it is about.
func ErrText(err error) string {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

package peercred

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// UIDOf is UID for a descriptor of a connected socket.
//
// The process is held by a descriptor while its namespaces are read, so that they are
// not those of another process that got its number. Since Linux 6.5 that descriptor
// comes from the socket itself. Before, it is opened by number: a process that connected
// and ended before this call can be taken for one that got its number meanwhile.
func UIDOf(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, fmt.Errorf("ask who is at the other end of the socket: %w", err)
	}
	if cred.Pid <= 0 {
		return foreign("it has no number among the processes that are seen here")
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = unix.PidfdOpen(int(cred.Pid), 0)
	}
	if err != nil {
		return foreign("hold process %d: %w", cred.Pid, err)
	}
	defer unix.Close(pidfd)
	if err := sameNamespaces(int(cred.Pid)); err != nil {
		return foreign("process %d: %w", cred.Pid, err)
	}
	// What was read was the process's if the number is still its own.
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return foreign("process %d has ended: %w", cred.Pid, err)
	}
	return int(cred.Uid), nil
}

// sameNamespaces fails unless the process is in the user and process namespaces of this
// one.
func sameNamespaces(pid int) error {
	// A /proc of another process namespace has other numbers.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return errors.Join(errors.New("/proc does not belong to this process namespace"), err)
	}
	for _, ns := range []string{"user", "pid"} {
		same, err := sameNamespace(pid, ns)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			return sameByStatus(pid)
		}
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("it is in another %s namespace", ns)
		}
	}
	return nil
}

// sameNamespace compares the namespace of one kind. To see the namespace of another process takes
// the right to trace it.
func sameNamespace(pid int, ns string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/self/ns/"+ns, &own); err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	if err := unix.Stat(procFile(pid, "ns/"+ns), &other); err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	return own.Dev == other.Dev && own.Ino == other.Ino, nil
}

// sameByStatus judges by what everybody may read of a process, for one of another user:
// it has one number, so it is in no process namespace below this one, and the ids of its
// user namespace are those of this one, which takes root to give to another.
func sameByStatus(pid int) error {
	status, err := read(procFile(pid, "status"))
	if err != nil {
		return err
	}
	_, after, ok := bytes.Cut(status, []byte("\nNSpid:"))
	line, _, whole := bytes.Cut(after, []byte("\n"))
	if !ok || !whole || len(bytes.Fields(line)) != 1 {
		return errors.New("it is in another pid namespace")
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		own, err := read("/proc/self/" + name)
		if err != nil {
			return err
		}
		other, err := read(procFile(pid, name))
		if err != nil {
			return err
		}
		if len(own) == 0 || !bytes.Equal(own, other) {
			return errors.New("it is in another user namespace")
		}
	}
	return nil
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// read reads a small file of /proc.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

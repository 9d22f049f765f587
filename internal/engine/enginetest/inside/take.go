//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxTaken is more than a sandbox should get of a table.
const maxTaken = 1 << 17

// take takes what there is of a table of the kernel's, as several users if it may be more
// than one, writes how much it was to a file and keeps it until it is killed.
func take(table, users, file string) error {
	n, err := strconv.Atoi(users)
	if err != nil {
		return err
	}
	total := 0
	for user := range n {
		cmd := exec.Command("/proc/self/exe", "take-as", table)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if user > 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		var got int
		if _, err := fmt.Fscan(out, &got); err != nil {
			return fmt.Errorf("user %d: %w", user, err)
		}
		total += got
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(total)), 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	silence()
	return nil
}

// takeAs takes as one user, says how much it was and keeps it.
func takeAs(table string) error {
	got, err := takeSome(table, maxTaken)
	if err != nil {
		return err
	}
	fmt.Println(got)
	silence()
	return nil
}

// takeSomeOnce takes a little of a table, says how much it got and ends.
func takeSomeOnce(table, most string) error {
	n, err := strconv.Atoi(most)
	if err != nil {
		return err
	}
	got, err := takeSome(table, n)
	fmt.Println(got)
	for _, id := range segments {
		_, _, _ = unix.Syscall(unix.SYS_SHMCTL, uintptr(id), unix.IPC_RMID, 0)
	}
	return err
}

// segments are those of shared memory, which outlive a process.
var segments []int

// takeSome takes up to so many entries of a table, until the kernel gives no more.
func takeSome(table string, most int) (int, error) {
	runtime.LockOSThread()
	one, err := taker(table)
	if err != nil {
		return 0, err
	}
	for n := range most {
		if err := one(n); err != nil {
			return n, nil
		}
	}
	return most, nil
}

// taker takes one entry.
func taker(table string) (func(n int) error, error) {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		files.Cur = files.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)
	}
	switch table {
	case "inotify":
		return func(int) error {
			_, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			return err
		}, nil
	case "terminals":
		return func(int) error {
			_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			return err
		}, nil
	case "timers":
		return func(int) error {
			var id int32
			_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
			if errno != 0 {
				return errno
			}
			return nil
		}, nil
	case "watches":
		return watches()
	case "epoll":
		return epoll()
	case "pipes":
		return func(int) error {
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			// A page each is given to everybody.
			_, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, 1<<20)
			return err
		}, nil
	case "segments":
		return func(int) error {
			id, _, errno := unix.Syscall(unix.SYS_SHMGET, 0, 4096, unix.IPC_CREAT|0o600)
			if errno != 0 {
				return errno
			}
			segments = append(segments, int(id))
			return nil
		}, nil
	case "queues":
		return func(n int) error {
			name, err := unix.BytePtrFromString(fmt.Sprintf("q%d-%d", os.Getpid(), n))
			if err != nil {
				return err
			}
			attr := [8]int64{0, 10, 8192} // flags, messages, bytes of each
			_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600, uintptr(unsafe.Pointer(&attr)), 0, 0)
			if errno != 0 {
				return errno
			}
			// The name is not needed, and would outlive this.
			_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
			return nil
		}, nil
	}
	return nil, fmt.Errorf("no table %q", table)
}

// polled is how many files one epoll instance waits for.
const polled = 1000

// epoll waits for the same files by one instance after the other.
func epoll() (func(n int) error, error) {
	var files [polled]int
	for i := range files {
		var err error
		if files[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return nil, err
		}
	}
	var fd int
	return func(n int) error {
		if n%polled == 0 {
			var err error
			if fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
				return err
			}
		}
		return unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, files[n%polled], &unix.EpollEvent{Events: unix.EPOLLIN})
	}, nil
}

// watchedFiles is how many files are watched by each instance.
const watchedFiles = 4000

// watches watches the same files by one instance after the other.
func watches() (func(n int) error, error) {
	dir, err := os.MkdirTemp("/tmp", "watched-")
	if err != nil {
		return nil, err
	}
	var fd int
	return func(n int) error {
		name := filepath.Join(dir, strconv.Itoa(n%watchedFiles))
		if n < watchedFiles {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
		}
		if n%watchedFiles == 0 {
			var err error
			if fd, err = unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
				return err
			}
		}
		_, err := unix.InotifyAddWatch(fd, name, unix.IN_MODIFY)
		return err
	}, nil
}

// sockets writes to connections of its own without a reader, up to so many MiB in all, and
// says how many it was.
func sockets(most string) error {
	n, err := strconv.Atoi(most)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b := make([]byte, 64<<10)
	total, idle := 0, 0
	for total < n<<20 && idle < 10 {
		conn, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			break
		}
		other, err := ln.Accept()
		if err != nil {
			break
		}
		defer conn.Close()
		defer other.Close()
		before := total
		for total < n<<20 {
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			wrote, err := conn.Write(b)
			total += wrote
			if err != nil {
				break
			}
		}
		if idle++; total-before > 1<<20 {
			idle = 0
		}
	}
	fmt.Println(total >> 20)
	return nil
}

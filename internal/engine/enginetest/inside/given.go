//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// The descriptors that an agent may be given, see engine.Agent.
const (
	listenFD = 5
	tapFD    = 6
	linkFD   = 7
	farFD    = 8
	groupFD  = 9
	groups   = 4
)

// listener is the socket that the agent was given to accept on, if it was.
func listener() (net.Listener, bool) {
	on, err := syscall.GetsockoptInt(listenFD, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil || on != 1 {
		return nil, false
	}
	f := os.NewFile(listenFD, "listener")
	defer f.Close()
	ln, err := net.FileListener(f)
	for fd := tapFD; fd < groupFD+groups; fd++ {
		syscall.CloseOnExec(fd)
	}
	return ln, err == nil
}

// configuration reads descriptor 3, with which those of a link may come.
func configuration() ([]byte, error) {
	b, control := make([]byte, 1<<16), make([]byte, syscall.CmsgSpace(4*3))
	n, m, _, _, err := syscall.Recvmsg(3, b, control, syscall.MSG_CMSG_CLOEXEC)
	file := os.NewFile(3, "config")
	defer file.Close()
	if errors.Is(err, syscall.ENOTSOCK) {
		return io.ReadAll(file)
	}
	messages, cerr := syscall.ParseSocketControlMessage(control[:max(m, 0)])
	for _, msg := range messages {
		fds, rerr := syscall.ParseUnixRights(&msg)
		err = errors.Join(err, rerr)
		for i, fd := range fds {
			err = errors.Join(err, syscall.Dup3(fd, tapFD+i, syscall.O_CLOEXEC))
		}
	}
	rest, rerr := io.ReadAll(file)
	return append(b[:max(n, 0)], rest...), errors.Join(err, cerr, rerr)
}

// carry takes frames from the device to the link and back, where there are these.
func carry() error {
	var st syscall.Stat_t
	if syscall.Fstat(tapFD, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFCHR {
		return nil
	}
	for _, fd := range []int{tapFD, linkFD} {
		if err := syscall.SetNonblock(fd, true); err != nil {
			return err
		}
	}
	tap, link := os.NewFile(tapFD, "tap"), os.NewFile(linkFD, "link")
	const head = 10
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := tap.Read(b)
			if n < head || err != nil {
				return
			}
			_, _ = link.Write(b[head:n])
		}
	}()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := link.Read(b[head:])
			if n == 0 || err != nil {
				return
			}
			trust(b[:head], b[head:head+n])
			_, _ = tap.Write(b[:head+n])
		}
	}()
	return nil
}

// trust writes the head of a frame with a packet of TCP: its sum need not be looked at.
func trust(head, frame []byte) {
	clear(head)
	if len(frame) < 14+20 || frame[12] != 8 || frame[13] != 0 || frame[14+9] != syscall.IPPROTO_TCP {
		return
	}
	head[0] = 1
	binary.NativeEndian.PutUint16(head[6:], 14+uint16(frame[14]&15)*4)
	binary.NativeEndian.PutUint16(head[8:], 16)
}

// given are the groups' files. They stay open for as long as the agent lives.
var given = sync.OnceValue(func() (files []*os.File) {
	for fd := groupFD; fd < groupFD+groups; fd++ {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && writable(fd) {
			files = append(files, os.NewFile(uintptr(fd), "group"))
		}
	}
	return files
})

// writable tells a group's file from one that the runtime has open to read it.
func writable(fd int) bool {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0)
	return errno == 0 && flags&syscall.O_ACCMODE != syscall.O_RDONLY
}

// command runs a program in the groups whose files it is given.
func command(files []*os.File, argv []string) *exec.Cmd {
	if len(files) == 0 {
		return exec.Command(argv[0], argv[1:]...)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"join", strconv.Itoa(len(files))}, argv...)...)
	cmd.ExtraFiles = files
	return cmd
}

// join enters the groups whose files begin at descriptor 3 and executes a program.
func join(args []string) {
	n, err := strconv.Atoi(args[0])
	for fd := 3; fd < 3+n && err == nil; fd++ {
		_, err = syscall.Write(fd, []byte("0"))
		syscall.CloseOnExec(fd)
	}
	if err == nil {
		path := args[1]
		if found, lerr := exec.LookPath(path); lerr == nil {
			path = found
		}
		err = syscall.Exec(path, args[1:], os.Environ())
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

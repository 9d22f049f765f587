package inner

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// fetchLink asks the host for a link, at the meeting place that is in this network
// namespace.
func fetchLink() ([]int, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(sock)
	if err := unix.Connect(sock, &unix.SockaddrUnix{Name: Meeting}); err != nil {
		return nil, fmt.Errorf("the host is not there: %w", err)
	}
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4*MeetingFiles))
	var n, oobn int
	for {
		if n, oobn, _, _, err = unix.Recvmsg(sock, b[:], oob, unix.MSG_CMSG_CLOEXEC); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	if n == 0 {
		return nil, errors.New("the host gives none")
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("the host's message has no descriptors"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != MeetingFiles {
		return nil, errors.Join(err, errors.New("the host's message has other descriptors"))
	}
	return fds, nil
}

// listen makes the socket that an agent with a link accepts on.
func listen(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return -1, fmt.Errorf("listen on the agent's port: %w", err)
	}
	return fd, nil
}

// linkAt returns a listening socket at a port, a device and the two ends of a link. Port 0 returns
// nothing.
func linkAt(port int) ([]int, error) {
	if port == 0 {
		return nil, nil
	}
	ln, err := listen(port)
	if err != nil {
		return nil, err
	}
	link, err := fetchLink()
	if err != nil {
		return nil, fmt.Errorf("fetch the link: %w", err)
	}
	return append([]int{ln}, link...), nil
}

//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// What an engine of the host's own kernel gives beside the configuration, see
// engine.Agent.
const (
	listenFD = 5
	tapFD    = 6
	linkFD   = 7
	farFD    = 8
	linkFDs  = 3 // the last three
	groupFD  = 9
)

// givenListener is the socket that the agent was given to accept on; may be nil.
func givenListener() (net.Listener, error) {
	if on, err := unix.GetsockoptInt(listenFD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return nil, nil
	}
	for fd := listenFD; fd < groupFD+launcher.MaxLimits; fd++ {
		unix.CloseOnExec(fd)
	}
	f := os.NewFile(listenFD, "listener")
	defer f.Close() // FileListener has its own copy
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("accept on descriptor %d: %w", listenFD, err)
	}
	return ln, nil
}

// givenGroups are the files by which a process joins the groups that limit it. Who was
// given no listener was given none of them. The runtime has files of groups open too,
// to read them.
func givenGroups(given bool) (fds [launcher.MaxLimits]int32) {
	for i := range fds {
		var st unix.Stat_t
		fds[i] = -1
		if fd := groupFD + i; given && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && writable(fd) {
			fds[i] = int32(fd)
		}
	}
	return fds
}

func writable(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
}

// headBytes is the size of what is before each frame on the device.
const headBytes = 10

// maxFrame is the largest that a device hands over.
const maxFrame = 1<<16 + 64

// carry takes frames between the device and the link for as long as there are both;
// without them it does nothing. A frame that one of them does not take is lost, as on
// any wire.
func carry(wg *sync.WaitGroup) error {
	var st unix.Stat_t
	if unix.Fstat(tapFD, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil
	}
	for _, fd := range []int{tapFD, linkFD} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return fmt.Errorf("carry frames: %w", err)
		}
	}
	tap, link := os.NewFile(tapFD, "tap"), os.NewFile(linkFD, "link")
	if tap == nil || link == nil {
		return errors.New("carry frames: no device or no link")
	}
	wg.Go(func() {
		for b := make([]byte, maxFrame); ; {
			n, err := tap.Read(b)
			if err != nil {
				return
			}
			if n > headBytes {
				send(link, b[headBytes:n])
			}
		}
	})
	wg.Go(func() {
		for b := make([]byte, maxFrame); ; {
			n, err := link.Read(b[headBytes:])
			if n == 0 || err != nil {
				return // the link is gone
			}
			writeHead(b[:headBytes], b[headBytes:headBytes+n])
			_, _ = tap.Write(b[:headBytes+n])
		}
	})
	return nil
}

// send waits while the link is full: its other end reads as fast as it can.
func send(link io.Writer, frame []byte) { _, _ = link.Write(frame) }

// writeHead says of a frame that the sum of its packet is still to be made, so that
// the receiver does not check it. A later part of a packet has no such field.
func writeHead(head, frame []byte) {
	clear(head)
	const ethernet = 14
	if len(frame) < ethernet+20 || frame[12] != 0x08 || frame[13] != 0 || binary.BigEndian.Uint16(frame[ethernet+6:])&0x3fff != 0 {
		return
	}
	at := map[byte]uint16{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[frame[ethernet+9]]
	start := ethernet + uint16(frame[ethernet]&15)*4
	if at == 0 || int(start+at)+2 > len(frame) {
		return
	}
	head[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(head[6:], start)
	binary.NativeEndian.PutUint16(head[8:], at)
}

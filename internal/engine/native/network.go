//go:build linux

package native

import (
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/tap"
)

// network brings the loopback up and, where the plan has a link, a tap device with
// all that the plan says of it.
func (s *script) network(p engine.Plan, device slot) {
	s.now = "bring the loopback up"
	sock := s.get(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	up := tap.Loopback()
	s.do(unix.SYS_IOCTL, sock, up.Request, up.Arg)
	if p.Link != nil {
		s.quietDevices()
		s.link(p.Link, sock, device)
	}
	s.do(unix.SYS_CLOSE, sock)
}

// quietDevices keeps the kernel from saying on a device that it speaks IPv6.
func (s *script) quietDevices() {
	s.now = "keep devices quiet"
	var fd slot
	s.optional(func() {
		fd = s.get(unix.SYS_OPENAT, unix.AT_FDCWD, tap.QuietPath, unix.O_WRONLY|unix.O_CLOEXEC)
	}, func() {
		s.do(unix.SYS_WRITE, fd, []byte("1"), 1)
		s.do(unix.SYS_CLOSE, fd)
	})
}

// link makes the device of a link, by a socket of its network.
func (s *script) link(l *engine.Link, sock, device slot) {
	s.now = "make the link"
	attach := tap.Attach()
	s.do(unix.SYS_IOCTL, device, attach.Request, attach.Arg)
	s.do(unix.SYS_IOCTL, device, unix.TUNSETOFFLOAD, tap.Offloads)
	for _, c := range tap.Setup(l) {
		s.do(unix.SYS_IOCTL, sock, c.Request, c.Arg)
	}
}

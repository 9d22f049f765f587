//go:build linux

package native

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// coverPlace is where the socket that covers others is meanwhile: over a directory that
// every root has.
const coverPlace = "/dev"

// coverSockets covers the sockets of a plan's mounts, as hostrootfs.CoverSockets does.
func (s *script) coverSockets(p engine.Plan, h handed) {
	if !slices.ContainsFunc(p.Mounts, func(m engine.Mount) bool { return len(m.Sockets) > 0 }) {
		return
	}
	s.now = "cover sockets of the host"
	fs := s.filesystem("tmpfs", 0, hostrootfs.InertOptions()...)
	s.do(unix.SYS_MKNODAT, fs, hostrootfs.InertSocket, hostrootfs.InertMode, 0)
	s.do(unix.SYS_MOUNT_SETATTR, fs, "", unix.AT_EMPTY_PATH, s.mountAttr(hostrootfs.InertAttrs), unix.MOUNT_ATTR_SIZE_VER0)
	s.move(fs, coverPlace)
	how := hostrootfs.HowSocket()
	howAt := s.bytes(unsafe.Slice((*byte)(unsafe.Pointer(&how)), unsafe.Sizeof(how)))
	inert, empty := s.text(coverPlace+"/"+hostrootfs.InertSocket), s.text("")
	at, cover := s.slot(), s.slot()
	for i, m := range p.Mounts {
		for _, name := range m.Sockets {
			// What is gone is passed over. What cannot be covered is no socket any more.
			s.optional(func() { s.add(unix.SYS_OPENAT2, []any{h.mounts[i].at, name, howAt, int(unsafe.Sizeof(how))}).save = at }, func() {
				s.add(unix.SYS_OPEN_TREE, []any{unix.AT_FDCWD, inert, unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC}).save = cover
				s.try(unix.SYS_MOVE_MOUNT, slot(cover), empty, slot(at), empty, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
				s.do(unix.SYS_CLOSE, slot(cover))
				s.do(unix.SYS_CLOSE, slot(at))
			})
		}
	}
	s.do(unix.SYS_UMOUNT2, coverPlace, unix.MNT_DETACH)
	s.do(unix.SYS_CLOSE, fs)
}

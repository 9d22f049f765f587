//go:build linux

package fsop

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/archive"
)

// attributes gives a file that was made with mode what the archive says of it.
// Each call goes to the process that serves the disk, so needless ones are left out.
func (x *unpacker) attributes(fd int, mode uint32, e archive.Entry) error {
	if x.keepOwner && (e.UID != 0 || e.GID != 0) {
		if err := unix.Fchown(fd, int(e.UID), int(e.GID)); err != nil {
			return err
		}
	}
	if mode == e.Mode && mode != 0o600 && !x.modesKept {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if x.modesKept = uint32(st.Mode)&0o7777 == mode; !x.modesKept {
			mode = 0
		}
	}
	// After the owner, whose change takes the set-id bits.
	if e.Mode != mode {
		if err := x.setMode(fd, e.Mode); err != nil {
			return err
		}
	}
	if e.ModTime.IsZero() {
		return nil
	}
	return setTimeOf(fd, e.ModTime)
}

// setTimeOf sets the times of an open file.
func setTimeOf(fd int, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{ts, ts}
	if _, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

func setTime(at int, base string, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.UtimesNanoAt(at, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// finish sets what was put off: the deepest directories first, as a mode can
// close a directory.
func (x *unpacker) finish(w *pathwalk.DirWalk) error {
	w.Mkdir = nil
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := x.dirs[i]
		if err := x.finishDir(w, d); err != nil && !errors.Is(err, unix.ENOENT) {
			return unpackError(d.name, err)
		}
	}
	return nil
}

func (x *unpacker) finishDir(w *pathwalk.DirWalk, d dirEnd) error {
	fd, err := w.Enter(d.name)
	if err != nil {
		return err
	}
	self := pathwalk.ProcFD(fd)
	if x.keepOwner {
		if err := unix.Fchownat(fd, "", int(d.uid), int(d.gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	give := x.setMode
	if x.restores {
		give = pathwalk.RestoreMode
	}
	if err := give(fd, d.mode); err != nil {
		return err
	}
	if d.time.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(d.time.UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, self, []unix.Timespec{ts, ts}, 0)
}

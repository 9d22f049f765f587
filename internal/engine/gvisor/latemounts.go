//go:build linux

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// A gofer serves what it was started with. So the gofer of a sandbox of the pool also serves slots: mounts of one empty
// directory and one empty file that all gofers share. At the claim the mounts of the request are attached over these,
// in the gofer's mount namespace; the sentry gets their connections and looks at them only then. A gofer stays in its
// empty root and its mounts: what is attached is a mount of its own, which leads nowhere else.

// slots are how many mounts a gofer has of the empty directory and of the empty file.
type slots struct{ dirs, files int }

// maxSlots bounds each.
const maxSlots = 16

// slotRoot is where a gofer has its slots, below its root.
const slotRoot = "/.cloche-late"

// goferRoot is the root of a gofer in its mount namespace, which gVisor makes.
const goferRoot = "/root"

func (s slots) target(n int) string { return slotRoot + "/" + strconv.Itoa(n) }

// slotsFor returns how many slots a sandbox has that gets mounts, in steps so that the kinds stay few; false is
// too many.
func slotsFor(mounts []engine.Mount) (s slots, ok bool) {
	for _, m := range mounts {
		if isDirectory(m) {
			s.dirs++
		} else {
			s.files++
		}
	}
	for _, n := range []*int{&s.dirs, &s.files} {
		switch {
		case *n > maxSlots:
			return slots{}, false
		case *n > 4:
			*n = maxSlots
		case *n > 0:
			*n = 4
		}
	}
	return s, true
}

func isDirectory(m engine.Mount) bool {
	st, err := os.Stat(m.Source)
	return err != nil || st.IsDir()
}

// lateMounts makes slots where the machine can attach others over them.
type lateMounts struct {
	dir  string // of what is mounted in slots, and of the kinds; it outlives the engine
	root bool   // the engine runs as root

	once sync.Once
	able bool
}

// usable reports whether a mount can be attached in the namespace of a gofer.
func (l *lateMounts) usable() bool {
	l.once.Do(func() {
		if !l.root {
			return
		}
		fd, err := hostrootfs.Detach(l.dir, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return
		}
		_ = unix.Close(fd)
		l.able = true
	})
	return l.able
}

func (l *lateMounts) directory() string { return filepath.Join(l.dir, "directory") }
func (l *lateMounts) file() string      { return filepath.Join(l.dir, "file") }

// make makes the empty directory and the empty file.
func (l *lateMounts) make() error {
	if err := os.MkdirAll(l.directory(), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.file(), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return err
	}
	return f.Close()
}

// withSlots adds slots.
func (l *lateMounts) withSlots(mounts []engine.Mount, s slots) []engine.Mount {
	all := slices.Clone(mounts)
	for n := range s.dirs + s.files {
		m := engine.Mount{Source: l.directory(), Target: s.target(n)}
		if n >= s.dirs {
			m.Source = l.file()
		}
		all = append(all, m)
	}
	return all
}

// attachSlots attaches mounts over the slots of a gofer and returns the number of each.
func attachSlots(gofer *pidfd.Process, s slots, mounts []engine.Mount) (taken []int, err error) {
	fds := make([]int, 0, len(mounts))
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	dir, file := 0, s.dirs
	for _, m := range mounts {
		attrs := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if m.ReadOnly {
			attrs |= unix.MOUNT_ATTR_RDONLY
		}
		fd, err := hostrootfs.Detach(m.Source, attrs)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Target, err)
		}
		fds = append(fds, fd)
		next := &file
		if isDirectory(m) {
			next = &dir
		}
		taken = append(taken, *next)
		*next++
	}
	if dir > s.dirs || file > s.dirs+s.files {
		return nil, fmt.Errorf("the sources of its mounts were replaced: %w", unix.ESTALE)
	}
	return taken, onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(gofer.Descriptor(), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace of a gofer: %w", err)
		}
		for i, fd := range fds {
			if err := unix.MoveMount(fd, "", unix.AT_FDCWD, goferRoot+s.target(taken[i]), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
				return fmt.Errorf("attach %s: %w", mounts[i].Target, err)
			}
		}
		return nil
	})
}

// onOwnThread calls f on a thread that ends afterwards. It is not the first thread, which stands for the process.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			result <- f()
			return // locked: the thread ends
		}
		result <- onOwnThread(f)
		runtime.UnlockOSThread()
	}()
	return <-result
}

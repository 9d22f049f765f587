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

// A gofer serves what it was started with. So the gofer of a sandbox of the pool also serves spare mounts, of one empty
// directory and one empty file that all of them share. At the claim the mounts of the request are attached over these,
// in the gofer's mount namespace; the sentry gets their connections and looks at them only then. A gofer stays in its
// empty root and its mounts: what is attached is a mount of its own, which leads nowhere else.

// spares are how many spare mounts of directories and of files there are.
type spares struct{ dirs, files int }

// maxSpares bounds each.
const maxSpares = 16

// spareRoot is where a gofer has its spare mounts, below its root.
const spareRoot = "/.cloche-late"

// goferRoot is the root of a gofer in its mount namespace, which gVisor makes.
const goferRoot = "/root"

func (s spares) target(n int) string { return spareRoot + "/" + strconv.Itoa(n) }

// sparesFor returns how many spare mounts a sandbox has that gets mounts, in steps so that the kinds stay few; false is
// too many.
func sparesFor(mounts []engine.Mount) (s spares, ok bool) {
	for _, m := range mounts {
		if isDirectory(m) {
			s.dirs++
		} else {
			s.files++
		}
	}
	for _, n := range []*int{&s.dirs, &s.files} {
		switch {
		case *n > maxSpares:
			return spares{}, false
		case *n > 4:
			*n = maxSpares
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

// lateMounts makes spare mounts where the machine can attach others over them.
type lateMounts struct {
	dir  string // of what is mounted in spare mounts, and of the kinds; it outlives the engine
	root bool   // the engine runs as root

	once sync.Once
	able bool
}

// usable reports whether a mount can be attached in the namespace of a gofer.
func (l *lateMounts) usable() bool {
	l.once.Do(func() {
		if !l.root || os.MkdirAll(filepath.Join(l.dir, "directory"), 0o700) != nil {
			return
		}
		f, err := os.OpenFile(filepath.Join(l.dir, "file"), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o400)
		if err != nil {
			return
		}
		f.Close()
		fd, err := hostrootfs.Detach(l.dir, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return
		}
		_ = unix.Close(fd)
		l.able = true
	})
	return l.able
}

// withSpares adds spare mounts.
func (l *lateMounts) withSpares(mounts []engine.Mount, s spares) []engine.Mount {
	all := slices.Clone(mounts)
	for n := range s.dirs + s.files {
		m := engine.Mount{Source: filepath.Join(l.dir, "directory"), Target: s.target(n)}
		if n >= s.dirs {
			m.Source = filepath.Join(l.dir, "file")
		}
		all = append(all, m)
	}
	return all
}

// attachSpares attaches mounts over the spare ones of a gofer and returns the number of each.
func attachSpares(gofer *pidfd.Process, s spares, mounts []engine.Mount) (taken []int, err error) {
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

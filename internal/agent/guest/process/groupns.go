//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// rootGroups gives the agent, and all that it starts, a cgroup namespace whose roots are the
// groups of the processes: those that the engine gave, and else those that the agent is in.
// So a program reads of each of its cgroups that it is in the root, and a path of the host's
// nowhere. It is best effort: without it a program reads where its group is in the agent's.
func rootGroups(files [launcher.MaxLimits]int32) {
	ns := make(chan int, 1)
	go groupNamespace(files, ns)
	fd := <-ns
	if fd < 0 {
		return
	}
	_ = identity.AllThreads(unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWCGROUP, 0)
	unix.Close(fd)
}

// groupNamespace makes the namespace on a thread that is in the groups and ends with this.
// It sends a descriptor, negative when it fails.
func groupNamespace(files [launcher.MaxLimits]int32, ns chan<- int) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread does not end, and memory is charged where it is. While it is
		// held here, another one takes over.
		defer runtime.UnlockOSThread()
		other := make(chan int)
		go groupNamespace(files, other)
		ns <- <-other
		return
	}
	fd, err := enterRoots(files)
	if err != nil {
		fd = -1
	}
	ns <- fd
}

// errNoLimits is of an agent that was given no groups.
var errNoLimits = errors.New("there are no groups to enter")

func enterRoots(files [launcher.MaxLimits]int32) (int, error) {
	entered := false
	for _, fd := range files {
		if fd < 0 {
			continue
		}
		if _, err := unix.Write(int(fd), []byte("0")); err != nil {
			return -1, fmt.Errorf("enter group: %w", err)
		}
		entered = true
	}
	if !entered {
		return -1, errNoLimits
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return -1, fmt.Errorf("make a cgroup namespace: %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open cgroup namespace: %w", err)
	}
	return fd, nil
}

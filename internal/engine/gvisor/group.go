//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// overhead is what the whole of a sandbox may take above its limit of memory.
const overhead = 64 << 20

// groupLayout: below the cgroup of an instance that limits memory are two more, one for
// the sentry and the gofer, one for the stubs, in which the sandbox's processes live.
// When a program takes too much, the kernel looks for a victim among the stubs, and the
// sentry still has memory to clear up with. In one common group the kernel kills one
// after the other and the sentry last, within milliseconds: what a program took belongs
// to a file that only the sentry can shrink.
func groupLayout(parent string) cgroup.Layout {
	return cgroup.Layout{
		Parent: parent, Controllers: []string{cgroup.Memory, cgroup.CPU, cgroup.Usage},
		Split: func(h cgroup.Hierarchy) bool { return h.Has(cgroup.Memory) },
		Own:   "sentry", Overhead: overhead,
	}
}

// adopt moves the sentry's first stub, from which it forks all later ones, into the
// guest's group.
func adopt(g *cgroup.Group, sentry int) error {
	for _, dir := range g.Guests() {
		for _, pid := range children(sentry) {
			err := pidfd.Write(dir, "cgroup.procs", strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move stub into cgroup: %w", err)
			}
		}
	}
	return nil
}

// children are the processes that a process has forked and not yet reaped.
func children(pid int) []int {
	var pids []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

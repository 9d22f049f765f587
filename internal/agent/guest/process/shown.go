//go:build linux

package process

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
)

// cpuPeriod is the period of cpu.max, in microseconds.
const cpuPeriod = 100_000

// cgroupDir is where programs look for cgroups.
const cgroupDir = "/sys/fs/cgroup"

// shownLimits are limits that the engine enforces from outside, as programs read them:
// the JVM, Node and Rust's libraries take the size of their pools and heaps from these
// files. They enforce nothing in a kernel of the sandbox's own, and in the host's what
// the engine enforces anyway. All of it is best effort: a sandbox without it works, and
// its programs see the machine's size.
type shownLimits struct {
	cpus   float64 // 0 shows none
	memory int64   // bytes; 0 shows none
}

func limitsOf(cfg agent.Config) shownLimits {
	return shownLimits{cpus: cfg.CPUs, memory: cfg.MemoryBytes}
}

// narrow gives the agent, and all that it starts, an affinity mask of as many CPUs as
// the limit has, rounded up: nproc and its like count these. The number of CPUs that
// are online stays two at least, so that no program leaves out a memory barrier that
// threads which run at the same time need.
func (l shownLimits) narrow() {
	n := int(math.Ceil(l.cpus))
	if l.cpus <= 0 || n >= runtime.NumCPU() {
		return
	}
	var set unix.CPUSet
	for cpu := range n {
		set.Set(cpu)
	}
	// Threads that are started later inherit it.
	_ = identity.AllThreads(unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	runtime.KeepAlive(&set)
}

// open gives the groups below job the control files, and mounts the hierarchy
// read-only where programs look for it. It returns what the files of each group are
// to say: nothing where that failed.
func (l shownLimits) open(root, job int) shownLimits {
	if l == (shownLimits{}) {
		return l
	}
	for _, dir := range []int{root, job} {
		if err := writeAt(dir, "cgroup.subtree_control", "+cpu +memory"); err != nil {
			return shownLimits{}
		}
	}
	l.write(job)
	tree, err := mountCgroup2(unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return shownLimits{}
	}
	defer unix.Close(tree)
	_ = showControllers()
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, cgroupDir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return shownLimits{}
	}
	return l
}

// handDown gives the groups below job the limits on a kernel that is the host's, where the
// engine shows the hierarchy. Programs such as the JVM and Go read the files of their own
// group alone. The group of the engine's, above, holds whatever these say. The agent has
// left it for one beside job, without which the kernel hands nothing down.
func (l shownLimits) handDown(job int) shownLimits {
	give := func(controller string) bool {
		for _, dir := range []string{"..", "."} {
			if writeAt(job, dir+"/cgroup.subtree_control", "+"+controller) != nil {
				return false
			}
		}
		return true
	}
	if l.cpus > 0 && !give("cpu") {
		l.cpus = 0
	}
	if l.memory > 0 && !give("memory") {
		l.memory = 0
	}
	l.write(job)
	return l
}

// controllers is /proc/cgroups of a machine whose controllers are all of version 2. The
// JVM reads the control files only where it lists these.
const controllers = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" +
	"cpuset\t0\t1\t1\ncpu\t0\t1\t1\ncpuacct\t0\t1\t1\nmemory\t0\t1\t1\npids\t0\t1\t1\n"

// showControllers puts a file over /proc/cgroups, where gVisor lists the controllers of
// version 1 alone. The file is in a tmpfs that no path leads to afterwards.
func showControllers() error {
	if err := unix.Mount("none", cgroupDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k,mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer func() { _ = unix.Unmount(cgroupDir, unix.MNT_DETACH) }()
	file := cgroupDir + "/cgroups"
	if err := os.WriteFile(file, []byte(controllers), 0o444); err != nil { //nolint:forbidigo // in a tmpfs of the agent's own, before any program runs
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := unix.Mount(file, "/proc/cgroups", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cover /proc/cgroups: %w", err)
	}
	const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return unix.Mount("", "/proc/cgroups", "", flags, "")
}

// write writes the limits into the control files of a group.
func (l shownLimits) write(dir int) {
	if l.cpus > 0 {
		_ = writeAt(dir, "cpu.max", strconv.FormatInt(int64(l.cpus*cpuPeriod), 10)+" "+strconv.Itoa(cpuPeriod))
	}
	if l.memory > 0 {
		_ = writeAt(dir, "memory.max", strconv.FormatInt(l.memory, 10))
	}
}

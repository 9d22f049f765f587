//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
)

// groups are the agent's cgroups: one for each process that it starts, below one
// that holds the limit for all. The agent has a descriptor of the hierarchy, and its
// control files belong to the agent. Programs see the hierarchy only where shown is
// not empty, and then read-only.
type groups struct {
	job   int         // descriptor of the group that holds the limit
	shown shownLimits // what the control files of each group say

	mu   sync.Mutex
	next uint64
	// left are groups whose process has ended but that are not empty.
	left map[*group]struct{}
}

// group holds the tree of one process.
type group struct {
	in   *groups
	name string

	mu  sync.Mutex
	dir int // -1 once it is removed: the number may be another's by then
}

// openGroups mounts the hierarchy and makes the group for all processes. A
// pidsMax of 0 is no limit.
func openGroups(pidsMax int64, shown shownLimits, id identity.Identity) (*groups, error) {
	root, err := mountCgroup2(0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	if id.UserNS >= 0 {
		// uid 0 of the processes must not be able to leave its group, should it
		// ever see the hierarchy.
		for _, name := range []string{"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := unix.Fchownat(root, name, identity.AgentID, identity.AgentID, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("take over %s: %w", name, err)
			}
		}
	}
	if pidsMax > 0 {
		if err := enablePids(root); err != nil {
			return nil, fmt.Errorf("enable the pids controller: %w", err)
		}
	}
	if err := unix.Mkdirat(root, "job", 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make group: %w", err)
	}
	job, err := unix.Openat(root, "job", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open group: %w", err)
	}
	g := &groups{job: job, left: map[*group]struct{}{}}
	if pidsMax > 0 {
		if err := g.limitPids(pidsMax); err != nil {
			unix.Close(job)
			return nil, err
		}
	}
	g.shown = shown.open(root, job)
	return g, nil
}

func (g *groups) limitPids(limit int64) error {
	if err := writeAt(g.job, "pids.max", strconv.FormatInt(limit, 10)); err != nil {
		return fmt.Errorf("set the pids limit: %w", err)
	}
	return nil
}

// mountCgroup2 mounts the hierarchy with more attributes, detached from every path.
func mountCgroup2(more int) (int, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open cgroup2: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("configure cgroup2: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, more|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount cgroup2: %w", err)
	}
	return root, nil
}

// enablePids gives root's children the pids controller. A group that is not the
// hierarchy's own root must not have processes for that: the agent moves.
func enablePids(root int) error {
	// The kernel refuses nothing here: pids is a controller that also works on threads,
	// so a group that has processes becomes one of threads, and those below it take no
	// processes any more. Only the hierarchy's own root is of no type.
	if err := unix.Faccessat(root, "cgroup.type", unix.F_OK, 0); err != nil {
		if err = writeAt(root, "cgroup.subtree_control", "+pids"); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	if err := unix.Mkdirat(root, "agent", 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := writeAt(root, "agent/cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	return writeAt(root, "cgroup.subtree_control", "+pids")
}

// writeAt writes a control file.
func writeAt(dir int, name, value string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// make makes a group for one process.
func (g *groups) make() (*group, error) {
	g.mu.Lock()
	g.next++
	name := "x" + strconv.FormatUint(g.next, 10)
	g.mu.Unlock()
	if err := unix.Mkdirat(g.job, name, 0o755); err != nil {
		return nil, fmt.Errorf("make group: %w", err)
	}
	dir, err := unix.Openat(g.job, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Unlinkat(g.job, name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("open group: %w", err)
	}
	g.shown.write(dir)
	return &group{in: g, name: name, dir: dir}, nil
}

// enter moves a process into the group. The pids limit does not refuse a move,
// so a program can be started while a fork bomb holds every pid.
func (g *group) enter(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return writeAt(g.dir, "cgroup.procs", strconv.Itoa(pid))
}

// kill kills every process in the group at once. One that is removed has none.
func (g *group) kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return nil
	}
	err := writeAt(g.dir, "cgroup.kill", "1")
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// A kernel before 5.14. What forks meanwhile is found by the next round.
	for range 1000 {
		pids, err := g.pidsLocked()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return errors.New("the processes fork faster than they can be killed")
}

// pids lists the processes in the group.
func (g *group) pids() ([]int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pidsLocked()
}

func (g *group) pidsLocked() ([]int, error) {
	if g.dir < 0 {
		return nil, nil
	}
	fd, err := unix.Openat(g.dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup.procs: %w", err)
	}
	defer unix.Close(fd)
	var text []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return nil, fmt.Errorf("read cgroup.procs: %w", err)
		}
		if n == 0 {
			break
		}
		text = append(text, buf[:n]...)
	}
	var pids []int
	for line := range bytes.Lines(text) {
		// 0 is a process that has no number here.
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// leave gives the group up: it goes now, or when its last process has ended.
func (g *group) leave() {
	if g.remove() {
		return
	}
	g.in.mu.Lock()
	defer g.in.mu.Unlock()
	g.in.left[g] = struct{}{}
}

func (g *group) remove() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return true
	}
	if err := unix.Unlinkat(g.in.job, g.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return false
	}
	unix.Close(g.dir)
	g.dir = -1
	return true
}

// sweep removes groups that have become empty.
func (g *groups) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for l := range g.left {
		if l.remove() {
			delete(g.left, l)
		}
	}
}

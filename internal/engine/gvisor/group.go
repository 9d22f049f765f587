//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

// cpuPeriod is the period of the processor quota, in microseconds.
const cpuPeriod = 100_000

// groupMaker makes the cgroups of this machine's kind. The daemon is in none of
// them, so that what happens to its group does not happen to the sandboxes.
type groupMaker struct {
	// roots are the directories under which groups are made, one for each
	// hierarchy that is used; empty when none can be.
	roots  []hierarchy
	reason string // why there are none, or why one of the controllers is missing
	// parent is the name of the roots, mounts are where there may be others: of
	// earlier daemons, which had another place.
	parent string
	mounts []cgroupMount
	// scopes matches the directories of what systemd gave to earlier daemons;
	// empty when it gives nothing.
	scopes string
	scope  string // the name of what systemd gave to this process
}

// hierarchy is one mounted cgroup file system and what of it is used.
type hierarchy struct {
	mount   cgroupMount
	root    string // the engine's own directory below that
	version int    // 1 or 2
	memory  bool
	cpu     bool
	usage   bool // counts processor time
	// nested says that root is inside a group that is somebody else's to remove:
	// root goes with the last of its groups.
	nested bool
}

// Below the cgroup of an instance that limits memory are two more: one for the
// sentry and the gofer, one for the stubs, in which the sandbox's processes live.
// The limit is that of the stubs; the whole gets overhead more. So when a
// program takes too much, the kernel looks for a victim among the stubs, and the
// sentry still has memory to clear up with. In one common group the kernel kills
// one after the other and the sentry last, within milliseconds: what a program
// took belongs to a file that only the sentry can shrink.
const (
	sentryGroup = "sentry"
	guestGroup  = "guest"
	overhead    = 64 << 20
)

// group is the cgroup of one instance: a directory in each hierarchy.
type group struct {
	parts []part
}

type part struct {
	hierarchy
	dir string
}

// entry is where the sentry and the gofer are started.
func (p part) entry() string {
	if p.memory {
		return filepath.Join(p.dir, sentryGroup)
	}
	return p.dir
}

// dirs are the directories of the part, those below first.
func (p part) dirs() []string {
	if p.memory {
		return []string{filepath.Join(p.dir, guestGroup), filepath.Join(p.dir, sentryGroup), p.dir}
	}
	return []string{p.dir}
}

// make makes the directories and writes the limits. Without any hierarchy the
// group is empty, and everything on it does nothing.
func (m groupMaker) make(owner, id string, l engine.Limits) (g *group, err error) {
	g = &group{}
	defer func() {
		if err != nil {
			g.discard()
		}
	}()
	for _, h := range m.roots {
		dir := filepath.Join(h.root, owner, id)
		if err := h.mkdir(owner, id); err != nil {
			return g, err
		}
		g.parts = append(g.parts, part{h, dir})
		if h.memory {
			if err := h.split(dir, l); err != nil {
				return g, err
			}
			if l.MemoryBytes > 0 {
				l.MemoryBytes += overhead
			}
		}
		if err := h.limit(dir, l); err != nil {
			return g, err
		}
	}
	return g, nil
}

// split makes the two groups below that of an instance.
func (h hierarchy) split(dir string, l engine.Limits) error {
	if h.version == 2 {
		if err := h.delegate(dir); err != nil {
			return err
		}
	}
	for _, name := range []string{sentryGroup, guestGroup} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return h.limit(filepath.Join(dir, guestGroup), engine.Limits{MemoryBytes: l.MemoryBytes})
}

// adopt moves the sentry's first stub, from which it forks all later ones, into
// the guest's group.
func (g *group) adopt(sentry int) error {
	for _, p := range g.parts {
		if !p.memory {
			continue
		}
		for _, pid := range children(sentry) {
			err := write(filepath.Join(p.dir, guestGroup), "cgroup.procs", strconv.Itoa(pid))
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

// mkdir makes the directory of one group and hands the controllers down to it.
func (h hierarchy) mkdir(owner, id string) error {
	// The owner's directory is removed with its last group, perhaps just now, and
	// a nested root with that.
	const tries = 20
	var err error
	for range tries {
		for _, dir := range []string{h.root, filepath.Join(h.root, owner)} {
			if err = os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				break
			}
			if err = nil; h.version == 2 {
				err = h.delegate(dir)
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			err = os.Mkdir(filepath.Join(h.root, owner, id), 0o755)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// delegate hands the used controllers of version 2 down to the groups below.
func (h hierarchy) delegate(dir string) error {
	var what []string
	if h.memory {
		what = append(what, "+memory")
	}
	if h.cpu {
		what = append(what, "+cpu")
	}
	if err := write(dir, "cgroup.subtree_control", strings.Join(what, " ")); err != nil {
		return fmt.Errorf("hand controllers down: %w", err)
	}
	return nil
}

// limit writes what the kind of hierarchy calls the limits.
func (h hierarchy) limit(dir string, l engine.Limits) error {
	type file struct {
		name, value string
		optional    bool
	}
	var files []file
	cpus := l.CPUs
	if h.version == 1 && h.cpu {
		cpus = h.within(cpus)
	}
	memory, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.FormatInt(int64(cpus*cpuPeriod), 10)
	switch h.version {
	case 2:
		if h.memory && l.MemoryBytes > 0 {
			files = append(files, file{"memory.max", memory, false}, file{"memory.swap.max", "0", true})
		}
		if h.cpu && l.CPUs > 0 {
			files = append(files, file{"cpu.max", quota + " " + strconv.Itoa(cpuPeriod), false})
		}
	default:
		if h.memory && l.MemoryBytes > 0 {
			files = append(files, file{"memory.limit_in_bytes", memory, false},
				// Memory and swap together: no swap. Absent without swap accounting.
				file{"memory.memsw.limit_in_bytes", memory, true},
				file{"memory.swappiness", "0", true})
		}
		if h.cpu && l.CPUs > 0 {
			files = append(files, file{"cpu.cfs_period_us", strconv.Itoa(cpuPeriod), false},
				file{"cpu.cfs_quota_us", quota, false})
		}
	}
	for _, f := range files {
		if err := write(dir, f.name, f.value); err != nil && !f.optional {
			return fmt.Errorf("set limit: %w", err)
		}
	}
	return nil
}

// enter calls f so that what it forks from this thread is born in the group.
// On version 2 the descriptor does that; on version 1 the thread itself goes in
// and comes back, which concerns no other thread and takes no lock of the
// kernel that would wait. The caller is locked to its thread.
func (g *group) enter(f func(cgroupFD int) error) error {
	cgroupFD := -1
	var back []string
	defer func() {
		for _, dir := range back {
			if err := write(dir, "tasks", "0"); err != nil {
				// Cannot stay in another's group and go on.
				panic("gvisor: cannot leave cgroup: " + err.Error())
			}
		}
	}()
	for _, p := range g.parts {
		if p.version == 2 {
			fd, err := unix.Open(p.entry(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open cgroup: %w", err)
			}
			defer func() { _ = unix.Close(fd) }()
			cgroupFD = fd
			continue
		}
		own, err := ownGroup(p.hierarchy)
		if err != nil {
			return err
		}
		if err := write(p.entry(), "tasks", "0"); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
		back = append(back, own)
	}
	return f(cgroupFD)
}

// within is the share of processors that a group may be given. Version 1 refuses
// a quota above that of a group around it, where version 2 takes it and applies
// the smaller.
func (h hierarchy) within(cpus float64) float64 {
	if h.root == "" {
		return cpus
	}
	for dir := filepath.Dir(h.root); ; dir = filepath.Dir(dir) {
		quota, period := readInt(dir, "cpu.cfs_quota_us"), readInt(dir, "cpu.cfs_period_us")
		if quota > 0 && period > 0 {
			cpus = min(cpus, float64(quota)/float64(period))
		}
		if dir == h.mount.path || dir == filepath.Dir(dir) {
			return cpus
		}
	}
}

// ownGroup is the directory of the calling thread's group of version 1.
func ownGroup(h hierarchy) (string, error) {
	b, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	dir, ok := h.mount.own(string(b))
	if !ok {
		return "", fmt.Errorf("read own cgroup: none in %s", h.mount.path)
	}
	return dir, nil
}

func (h hierarchy) controller() string {
	switch {
	case h.memory:
		return "memory"
	case h.cpu:
		return "cpu"
	}
	return "cpuacct"
}

func (g *group) paths() []string {
	var paths []string
	for _, p := range g.parts {
		paths = append(paths, p.dir)
	}
	return paths
}

// remove kills what is still in the group and removes it. Without a group it
// does nothing.
func (g *group) remove(ctx context.Context) error {
	ctx, cancel := withTimeout(ctx, killTimeout)
	defer cancel()
	for _, p := range g.parts {
		for _, dir := range p.dirs() {
			if err := removeDir(ctx, dir); err != nil {
				return fmt.Errorf("remove cgroup: %w", err)
			}
		}
		p.prune()
	}
	return nil
}

// prune removes what is above the group of an instance, when that was the last.
func (p part) prune() {
	_ = os.Remove(filepath.Dir(p.dir)) // the owner's
	if p.nested {
		_ = os.Remove(p.root)
	}
}

// removeDir waits until the kernel has let go of the last process.
func removeDir(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		killMembers(dir)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// discard removes a group that nothing has been started in yet.
func (g *group) discard() {
	for _, p := range g.parts {
		for _, dir := range p.dirs() {
			_ = os.Remove(dir)
		}
		p.prune()
	}
}

// killMembers kills every process in a group. Only what the engine started can
// be in one.
func killMembers(dir string) {
	if write(dir, "cgroup.kill", "1") == nil {
		return
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

var errNoGroup = errors.New("there is no cgroup to read it from")

func (g *group) stat() (engine.Stat, error) {
	if len(g.parts) == 0 {
		return engine.Stat{}, errNoGroup
	}
	var s engine.Stat
	for _, p := range g.parts {
		if p.version == 2 {
			s.MemoryBytes = readInt(p.dir, "memory.current")
			s.OOMKills = readField(p.dir, "memory.events", "oom_kill")
			s.CPU = time.Duration(readField(p.dir, "cpu.stat", "usage_usec")) * time.Microsecond
			continue
		}
		if p.memory {
			s.MemoryBytes = readInt(p.dir, "memory.usage_in_bytes")
			// Version 1 counts in each group for itself.
			for _, dir := range p.dirs() {
				s.OOMKills += readField(dir, "memory.oom_control", "oom_kill")
			}
		}
		if p.usage {
			s.CPU = time.Duration(readInt(p.dir, "cpuacct.usage"))
		}
	}
	return s, nil
}

// enforcement says which limits the hierarchies can enforce.
func (m groupMaker) enforcement() map[string]cloche.Enforcement {
	memory, cpu := cloche.Enforcement{Reason: m.reason}, cloche.Enforcement{Reason: m.reason}
	for _, h := range m.roots {
		if h.memory {
			memory = cloche.Enforcement{OK: true}
		}
		if h.cpu {
			cpu = cloche.Enforcement{OK: true}
		}
	}
	return map[string]cloche.Enforcement{
		"memory_bytes": memory,
		"cpus":         cpu,
		"pids":         {OK: true},
		"disk_bytes":   {OK: true},
	}
}

func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func readInt(dir, name string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func readField(dir, name, field string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == field {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

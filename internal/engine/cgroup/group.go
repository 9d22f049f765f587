//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// The controllers that there is a use for. Processor time is counted by Usage on
// version 1, and by every group on version 2.
const (
	Memory = "memory"
	CPU    = "cpu"
	Pids   = "pids"
	Usage  = "cpuacct"
)

// guestGroup is the name of the group of the sandbox's own processes, below the group of an
// instance.
const guestGroup = "guest"

// Layout says what an engine's groups look like. It is the same for all of them.
type Layout struct {
	// Parent is the directory of all groups of the engine.
	Parent string
	// Controllers are those that the engine has a use for.
	Controllers []string
	// Bare takes a hierarchy of version 2 without any of them too: processes can be
	// born in its groups, and freeze.
	Bare bool
	// Split says in which hierarchies there is another group below the group of an instance,
	// for the sandbox's own processes; nil is no hierarchy. The limits are that group's; the
	// whole gets Overhead bytes more. So when a program takes too much, the kernel looks
	// for a victim among the sandbox's processes, and what serves them still has memory
	// to clear up with. In one common group it could be the first to go.
	Split func(Hierarchy) bool
	// Own is the group for what serves them, beside it; empty is the instance's itself,
	// which only version 1 allows.
	Own string
	// Overhead is added to the limit of memory.
	Overhead int64
}

// Hierarchy is one mounted cgroup file system and what of it is used.
type Hierarchy struct {
	Mount Mount
	// Root is the engine's own directory below that.
	Root string
	// Uses are controllers.
	Uses []string
	// Nested says that Root is inside a group that another owner removes: it
	// goes with the last of its groups.
	Nested bool
}

// Has reports whether a controller is used.
func (h Hierarchy) Has(controller string) bool { return slices.Contains(h.Uses, controller) }

// Group is the cgroup of one instance: a directory in each hierarchy. Without any,
// everything on it does nothing.
type Group struct{ Parts []Part }

// Part is the directory in one hierarchy.
type Part struct {
	Hierarchy
	Dir string
	// These are the layout's, for one that was made and not found.
	split    bool
	own      string
	overhead int64
}

// below are the groups below the group of the instance.
func (p Part) below() []string {
	switch {
	case !p.split:
		return nil
	case p.own == "":
		return []string{guestGroup}
	}
	return []string{p.own, guestGroup}
}

// entry is where the first process is started.
func (p Part) entry() string {
	if p.split {
		return filepath.Join(p.Dir, p.own)
	}
	return p.Dir
}

// Make makes the directories, without limits.
func (m Maker) Make(owner, id string) (g *Group, err error) {
	g = &Group{}
	defer func() {
		if err != nil {
			g.Discard()
		}
	}()
	for _, h := range m.All {
		p := Part{Hierarchy: h, Dir: filepath.Join(h.Root, owner, id), own: m.layout.Own, overhead: m.layout.Overhead}
		p.split = m.layout.Split != nil && m.layout.Split(h)
		if err := h.mkdir(owner, id); err != nil {
			return g, err
		}
		g.Parts = append(g.Parts, p)
		if below := p.below(); len(below) > 0 {
			if err := h.handDown(p.Dir); err != nil {
				return g, err
			}
			for _, name := range below {
				if err := os.Mkdir(filepath.Join(p.Dir, name), 0o755); err != nil {
					return g, fmt.Errorf("make cgroup: %w", err)
				}
			}
		}
	}
	return g, nil
}

// mkdir makes the directory of one group and hands the controllers down to it.
func (h Hierarchy) mkdir(owner, id string) error {
	// The owner's directory is removed with its last group, perhaps just now, and
	// a nested root with that.
	const tries = 20
	var err error
	for range tries {
		if len(h.handed()) == 0 {
			// The groups above exist, except the first time.
			if err = os.Mkdir(filepath.Join(h.Root, owner, id), 0o755); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		for _, dir := range []string{h.Root, filepath.Join(h.Root, owner)} {
			if err = os.Mkdir(dir, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
				err = h.handDown(dir)
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			err = os.Mkdir(filepath.Join(h.Root, owner, id), 0o755)
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

// handed is what a group of version 2 hands to those below it.
func (h Hierarchy) handed() (what []string) {
	if h.Mount.Version != 2 {
		return nil
	}
	for _, c := range h.Uses {
		if c != Usage {
			what = append(what, "+"+c)
		}
	}
	return what
}

// handDown hands the used controllers of version 2 to the groups below a directory.
func (h Hierarchy) handDown(dir string) error {
	what := h.handed()
	if len(what) == 0 {
		return nil
	}
	if err := pidfd.Write(dir, "cgroup.subtree_control", strings.Join(what, " ")); err != nil {
		return fmt.Errorf("hand controllers down: %w", err)
	}
	return nil
}

// Guests are the groups of the sandbox's own processes in hierarchies that are split and
// limit memory.
func (g *Group) Guests() []string {
	var dirs []string
	for _, p := range g.Parts {
		if p.split && p.Has(Memory) {
			dirs = append(dirs, filepath.Join(p.Dir, guestGroup))
		}
	}
	return dirs
}

// Enter calls f so that what it forks from this thread is born in the group. On version
// 2 the descriptor does that, which is negative without; on version 1 the thread itself
// goes in and comes back, which concerns no other thread and takes no lock of the kernel
// that would wait. The caller is locked to its thread.
func (g *Group) Enter(f func(cgroupFD int) error) error {
	cgroupFD := -1
	var back []string
	defer func() {
		for _, dir := range back {
			if err := pidfd.Write(dir, "tasks", "0"); err != nil {
				// Cannot stay in another's group and go on.
				panic("cgroup: cannot leave cgroup: " + err.Error())
			}
		}
	}()
	for _, p := range g.Parts {
		if p.Mount.Version == 2 {
			fd, err := unix.Open(p.entry(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open cgroup: %w", err)
			}
			defer func() { _ = unix.Close(fd) }()
			cgroupFD = fd
			continue
		}
		own, err := ownGroup(p.Hierarchy)
		if err != nil {
			return err
		}
		if err := pidfd.Write(p.entry(), "tasks", "0"); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
		back = append(back, own)
	}
	return f(cgroupFD)
}

// ownGroup is the directory of the calling thread's group of version 1.
func ownGroup(h Hierarchy) (string, error) {
	b, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	dir, ok := h.Mount.own(string(b))
	if !ok {
		return "", fmt.Errorf("read own cgroup: none in %s", h.Mount.Path)
	}
	return dir, nil
}

// Joins are the files to write 0 to, of version 1: a first process that was not born in
// the group to join it, and what it starts to join the group of the guest. The caller
// closes them, also after an error.
func (g *Group) Joins() (join, guest []*os.File, err error) {
	for _, p := range g.Parts {
		if p.Mount.Version != 1 {
			continue
		}
		f, err := openTasks(p.entry())
		if err != nil {
			return join, guest, err
		}
		join = append(join, f)
		if p.split {
			if f, err = openTasks(filepath.Join(p.Dir, guestGroup)); err != nil {
				return join, guest, err
			}
			guest = append(guest, f)
		}
	}
	return join, guest, nil
}

func openTasks(dir string) (*os.File, error) {
	path := filepath.Join(dir, "tasks")
	fd, err := pidfd.OpenControl(path, unix.O_WRONLY)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Unified is the directory of version 2; empty if the group has none.
func (g *Group) Unified() string {
	for _, p := range g.Parts {
		if p.Mount.Version == 2 {
			return p.Dir
		}
	}
	return ""
}

// Paths are the directories, to be written down.
func (g *Group) Paths() []string {
	var paths []string
	for _, p := range g.Parts {
		paths = append(paths, p.Dir)
	}
	return paths
}

// Remove kills what is still in the group and removes it.
func (g *Group) Remove(ctx context.Context) error {
	for _, p := range g.Parts {
		for _, name := range p.below() {
			// As a rule nothing is left in it: then no walk is needed.
			_ = os.Remove(filepath.Join(p.Dir, name))
		}
		if err := RemoveTree(ctx, p.Dir); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		p.prune()
	}
	return nil
}

// Discard removes a group that nothing has been started in yet.
func (g *Group) Discard() {
	for _, p := range g.Parts {
		for _, name := range p.below() {
			_ = os.Remove(filepath.Join(p.Dir, name))
		}
		_ = os.Remove(p.Dir)
		p.prune()
	}
}

// prune removes what is above the group of an instance, when that was the last.
func (p Part) prune() {
	removeEmpty(filepath.Dir(p.Dir)) // the owner's
	if p.Nested {
		removeEmpty(p.Root)
	}
}

// removeEmpty removes a group that has none below it. To be told by the kernel that it
// has would cost a lock that all groups of the machine share. Of two groups whose last
// ones are removed at the same time, the later one sees the directory empty.
func removeEmpty(dir string) {
	var st unix.Stat_t
	const alone = 2 // links of a directory without any below it
	if err := unix.Lstat(dir, &st); err == nil && st.Nlink > alone {
		return
	}
	_ = os.Remove(dir)
}

// RemoveTree removes a group and those below it, whose names the sandbox may have
// chosen, and waits until the kernel has let go of the last process. No group is
// deeper than the kernel allows, and what is killed makes no new ones.
func RemoveTree(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		killMembers(dir)
		entries, _ := os.ReadDir(dir)
		below := 0
		for _, e := range entries {
			if e.IsDir() {
				below++
				if err := RemoveTree(ctx, filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
		}
		if below > 0 && os.Remove(dir) == nil {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// members are the processes in a group.
func members(dir string) []int {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killMembers kills every process in a group. Only what the engine started can
// be in one.
func killMembers(dir string) {
	if pidfd.Write(dir, "cgroup.kill", "1") == nil {
		return
	}
	for _, pid := range members(dir) {
		if pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

var errNoGroup = errors.New("there is no cgroup to read it from")

// Stat reads what the instance uses.
func (g *Group) Stat() (engine.Stat, error) {
	var s engine.Stat
	found := false
	for _, p := range g.Parts {
		found = found || len(p.Uses) > 0
		if p.Mount.Version == 2 {
			s.MemoryBytes = max(s.MemoryBytes, readInt(p.Dir, "memory.current"))
			s.OOMKills += readField(p.Dir, "memory.events", "oom_kill")
			if s.CPU == 0 {
				s.CPU = time.Duration(readField(p.Dir, "cpu.stat", "usage_usec")) * time.Microsecond
			}
			continue
		}
		if p.Has(Memory) {
			s.MemoryBytes = readInt(p.Dir, "memory.usage_in_bytes")
			// Version 1 counts in each group for itself.
			files, _ := filepath.Glob(filepath.Join(p.Dir, "*", "memory.oom_control"))
			for _, file := range append(files, filepath.Join(p.Dir, "memory.oom_control")) {
				s.OOMKills += readField(filepath.Dir(file), filepath.Base(file), "oom_kill")
			}
		}
		if p.Has(Usage) {
			s.CPU = time.Duration(readInt(p.Dir, "cpuacct.usage"))
		}
	}
	if !found {
		return s, errNoGroup
	}
	return s, nil
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

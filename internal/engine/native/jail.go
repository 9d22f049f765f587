//go:build linux

package native

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Jail is a program that isolates in this engine's stead. The engine makes the place,
// as root of a user namespace with the sandbox's ids and of a mount and a network
// namespace: the root with all that is mounted in it but /proc. There it executes the
// program, with the host's own root in sight. The program makes the other namespaces
// and a user namespace in that one, takes Root for its root and starts the agent as
// its first process. It stays above the agent, and neither outlives the other.
type Jail struct {
	// Name is what requests call the engine.
	Name string
	// Program finds it on the host.
	Program func() (string, error)
	// Argv is how it is called.
	Argv func(Jailed) []string
}

// Jailed is what a Jail has to be told. It is called with no environment.
type Jailed struct {
	// Hostname is the sandbox's; empty keeps the host's.
	Hostname string
	// Root is where the root is, and Empty an empty directory that no user can write to.
	// Made has the files that stand for those of /proc, see hostrootfs.StandIns.
	Root, Empty, Made string
	// ReadOnly says that Root is.
	ReadOnly bool
	// UID is the agent's user and group, and IDs how many there are, from 0 on: each is
	// the same in the namespace in which the program is.
	UID, IDs uint32
	// Caps are the agent's capabilities, a bit each.
	Caps uint64
	// Keep are the descriptors that the agent gets, beside 0 to 2.
	Keep []int
	// Log is the descriptor that the program complains to.
	Log int
	// Agent is the agent's command line; its first word is its path.
	Agent []string
}

// Where the root is made for a jail. The host's /run is covered there: the program
// needs nothing of it, and what it leaves there is gone with the namespace.
const (
	jailPlace = "/run"
	jailRoot  = jailPlace + "/root"
	jailEmpty = jailPlace + "/empty"
	jailMade  = jailPlace + "/made"
)

// Descriptors of a jail, beside the agent's.
const (
	jailFD = groupFD + maxGroups + iota
	jailLogFD
)

// jailLog is what the program said, in the plan's directory.
const jailLog = "jail.log"

// childTimeout bounds the wait for a program to end whose agent has.
const childTimeout = 5 * time.Second

// ownThreads is how many threads a jail and the agent have for themselves, where the
// limit of processes counts them.
const ownThreads = 64

// limitJail limits the processes where the agent cannot: on version 2 with the whole
// group, which the program above the agent is in.
func (c *creation) limitJail() error {
	dir := c.group.Unified()
	if dir == "" || c.plan.Limits.Pids <= 0 || !c.e.groups.Unified().Has(cgroup.Pids) {
		return nil
	}
	if err := pidfd.Write(dir, "pids.max", strconv.FormatInt(c.plan.Limits.Pids+ownThreads, 10)); err != nil {
		return fmt.Errorf("set limit: %w", err)
	}
	return nil
}

// openJail opens the program and its log, where the daemon's user can.
func (c *creation) openJail() error {
	c.h.jail = -1
	if c.e.jail == nil {
		return nil
	}
	program, err := c.e.jail.Program()
	if err != nil {
		return err
	}
	fd, err := unix.Open(program, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", c.e.jail.Name, err)
	}
	if c.h.jail, err = c.give(fd); err != nil {
		return err
	}
	fd, err = unix.Open(filepath.Join(c.plan.Dir, jailLog), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	c.h.jailLog, err = c.give(fd)
	return err
}

// stage makes the root for a jail and goes into it, so that what is mounted later is
// found there only. What it returns is the host's.
func (s *script) stage(p engine.Plan, h *handed) slot {
	s.now = "make /sys"
	sys := s.filesystem("sysfs", quietAttrs|unix.MOUNT_ATTR_RDONLY)
	s.now = "make the root"
	host := s.get(unix.SYS_OPENAT, unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	s.do(unix.SYS_MOUNT, "none", jailPlace, "tmpfs", layerFlags, layer(p))
	s.do(unix.SYS_CHDIR, jailPlace)
	s.mkdir("user", 0o777)
	s.mkdir("empty", 0o555)
	s.standIns("made", hostrootfs.StandIns())
	// The program changes flags and leaves this one out, which would be refused: what is
	// mounted in a user namespace opens no devices anyway.
	s.overlay(h, 0)
	s.now = "enter the root"
	s.do(unix.SYS_CHDIR, "root")
	s.do(unix.SYS_CHROOT, ".")
	s.now = mountSystem
	s.try(unix.SYS_MKDIRAT, unix.AT_FDCWD, "/proc", 0o755)
	s.do(unix.SYS_CLOSE, s.get(unix.SYS_OPENAT, unix.AT_FDCWD, "/proc", unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC))
	s.system(sys, "/sys")
	return host
}

// imprison leaves the root that was made and becomes the program that takes it.
func (s *script) imprison(e *Engine, p engine.Plan, ids hostrootfs.IDs, h handed, host, tap slot) {
	s.now = "leave the root"
	s.do(unix.SYS_FCHDIR, host)
	s.do(unix.SYS_CHROOT, ".")
	s.limitCore()
	s.limitUser(e, p, ids)
	s.handOver(h, tap)
	s.do(unix.SYS_DUP3, h.jail, jailFD, unix.O_CLOEXEC)
	s.do(unix.SYS_DUP3, h.jailLog, jailLogFD, 0)
	s.do(unix.SYS_CLOSE_RANGE, jailLogFD+1, maxFD, 0)
	s.quiet(p)
	j := Jailed{
		Hostname: p.Hostname, Root: jailRoot, Empty: jailEmpty, Made: jailMade, ReadOnly: p.Root.ReadOnly, UID: p.Agent.UID, IDs: ids.Size, Caps: ids.AgentCaps(),
		Keep: []int{configFD, readyFD, listenFD}, Log: jailLogFD, Agent: p.Agent.Argv,
	}
	if h.guest >= 0 {
		j.Keep = append(j.Keep, tapFD, guestFD, farFD)
	}
	for i := range h.groups {
		j.Keep = append(j.Keep, groupFD+i)
	}
	s.now = "execute " + e.jail.Name
	s.do(unix.SYS_EXECVEAT, jailFD, "", s.vector(e.jail.Argv(j)), s.vector(nil), unix.AT_EMPTY_PATH)
}

// lowPorts lets root of the sandbox listen on every port: the network namespace is
// owned by the user namespace above its own.
func (s *script) lowPorts() { s.set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0") }

// findAgent finds the agent, which may be below a program that has started it.
func (c *creation) findAgent(context.Context) error {
	// What was executed has memory of its own, and has started no program yet.
	_ = pidfd.SetOOMScore(c.child.ID.PID, pidfd.OOMSandbox())
	if c.e.jail == nil {
		c.inst = newInstance(c.e, c.rec, lifecycle.Encode(c.rec), c.child, nil, c.group)
		return nil
	}
	found, err := children(c.child)
	if err != nil {
		return fmt.Errorf("find the agent: %w", err)
	}
	if len(found) != 1 {
		for _, p := range found {
			p.Abandon()
		}
		return fmt.Errorf("%d processes are below %s, not the agent alone", len(found), c.e.jail.Name)
	}
	c.rec.Init = found[0].ID
	_ = pidfd.SetOOMScore(c.rec.Init.PID, pidfd.OOMSandbox())
	if err := c.e.records.Update(c.rec); err != nil {
		found[0].Abandon()
		return err
	}
	c.inst = newInstance(c.e, c.rec, lifecycle.Encode(c.rec), found[0], c.child, c.group)
	return nil
}

// children opens the processes that p has started. It is for a p that starts no more
// of them, or is killed afterwards: what comes later ends with it.
func children(p *pidfd.Process) ([]*pidfd.Process, error) {
	number := strconv.Itoa(p.ID.PID)
	b, err := os.ReadFile("/proc/" + number + "/task/" + number + "/children")
	if errors.Is(err, os.ErrNotExist) {
		b, err = childrenOf(number)
	}
	if err != nil {
		return nil, err
	}
	var found []*pidfd.Process
	for f := range bytes.FieldsSeq(b) {
		pid, err := strconv.Atoi(string(f))
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		// The pidfd holds the number, so what is read now is about its process.
		if parent(string(f)) != number {
			_ = unix.Close(fd)
			continue
		}
		q, err := pidfd.New(pid, fd)
		if err != nil {
			return found, err
		}
		found = append(found, q)
	}
	return found, nil
}

// childrenOf is for kernels that do not list them.
func childrenOf(number string) ([]byte, error) {
	entries, err := os.ReadDir("/proc")
	var out []byte
	for _, entry := range entries {
		if name := entry.Name(); name[0] >= '1' && name[0] <= '9' && parent(name) == number {
			out = append(append(out, name...), ' ')
		}
	}
	return out, err
}

// parent is the number of a process's parent; empty when it has none any more.
func parent(number string) string {
	b, err := os.ReadFile("/proc/" + number + "/stat")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 2 {
		return ""
	}
	return f[1]
}

// killAll kills a process, which all others of its sandbox die with, and waits. Where
// it is a program above an agent, that is killed too.
func killAll(ctx context.Context, p *pidfd.Process, above bool) error {
	if !above {
		p.Kill()
		return p.Wait(ctx)
	}
	below, err := children(p)
	p.Kill()
	for _, b := range below {
		b.Kill()
	}
	errs := []error{err, p.Wait(ctx)}
	for _, b := range below {
		errs = append(errs, b.Wait(ctx))
		b.Abandon()
	}
	return errors.Join(errs...)
}

// lastWords is what a jail complained, bounded.
func lastWords(dir string) string {
	f, err := os.Open(filepath.Join(dir, jailLog))
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 2048)
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	n, _ := f.ReadAt(b, max(0, info.Size()-int64(len(b))))
	return strings.ToValidUTF8(string(b[:n]), "?")
}

// jailEnd says how the agent ended by how the program above it did.
func jailEnd(how string) string {
	code, ok := strings.CutPrefix(how, "ended with exit code ")
	n, err := strconv.Atoi(code)
	if !ok || err != nil {
		return ""
	}
	if n > 128 {
		return "was killed by signal " + cmp.Or(api.SignalName(n-128), strconv.Itoa(n-128))
	}
	return how
}

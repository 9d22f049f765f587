//go:build linux

package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// creation is one Create on its way: what it has made so far, and how to take that
// back.
type creation struct {
	e    *Engine
	plan engine.Plan
	// clean is for what must be taken back although the caller has gone.
	clean context.Context
	rec   record
	undo  lifecycle.Undo

	ids    hostrootfs.IDs
	group  *cgroup.Group
	join   []*os.File
	script *script
	h      handed
	child  *pidfd.Process // the agent, or the program above it
	fds    []int          // what the child is given; closed when it has them
	kept   []int          // its mounts whose ids are mapped, the root first
	goOn   int            // the child waits for a byte; -1 once it is told
	ready  *os.File       // the agent writes a byte when it listens
	inst   *instance

	// Of one that was begun before there was a plan, see spare.go.
	tell     int // the other end of the agent's configuration; -1 is closed
	listener int // the agent's, which has no name yet; -1 is closed
	mount    int // of the agent's image; -1 is closed
	executed *os.File
	told     bool // the agent is, so what fails from then on is its own
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := e.validate(p); err != nil {
		return nil, err
	}
	if egress := e.egress(); p.Link != nil && !egress.OK {
		return nil, api.Errorf(api.CodeUnsupported, "create sandbox: engine %s has no network here: %s", e.name, egress.Reason).
			WithHint("let the daemon's user open /dev/net/tun, or use engine gvisor")
	}
	k, fits := e.kindFor(p)
	if fits {
		defer e.want(k, p)
		if i, err, ok := e.fromPool(ctx, k, p); ok {
			return i, err
		}
	}
	c := newCreation(ctx, e, p)
	err := c.do(ctx, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: c.record},
		{Name: "make cgroup", Do: c.makeGroup},
		{Name: "open files", Do: c.open},
		{Name: "start process", Do: c.start},
		{Name: "make ids", Do: c.mapIDs},
		{Name: "wait for agent", Do: c.waitAgent},
		{Name: "find agent", Do: c.findAgent},
	})
	if err != nil {
		return nil, err
	}
	return c.done(), nil
}

func newCreation(ctx context.Context, e *Engine, p engine.Plan) *creation {
	return &creation{e: e, plan: p, clean: context.WithoutCancel(ctx), goOn: -1, tell: -1, listener: -1, mount: -1, h: handed{guest: -1, far: -1, jail: -1, jailLog: -1}}
}

// do takes the steps. After an error nothing is left of what they made.
func (c *creation) do(ctx context.Context, steps []lifecycle.Step) error {
	failed, err := lifecycle.TakeSteps(ctx, c.e.log, c.plan.ID, steps)
	if err != nil {
		err = c.classify(ctx, failed, err)
		c.rollback()
	}
	return err
}

// done is the instance that was made.
func (c *creation) done() *instance {
	c.closeFiles()
	return c.inst
}

// validate refuses what no native sandbox can have.
func (e *Engine) validate(p engine.Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := p.RefuseSaved(e.name); err != nil {
		return err
	}
	for _, m := range p.Mounts {
		if m.Pinned {
			return p.RefusePinned(e.name, m)
		}
	}
	return p.CheckMountPoints()
}

// record writes down that there is going to be an instance, so that a Sweep after our
// sudden death knows where to look.
func (c *creation) record(context.Context) error {
	c.rec = record{Head: lifecycle.Head{
		ID: c.plan.ID, Owner: c.plan.Owner, Dir: c.plan.Dir, Boot: c.e.boot, Cgroups: c.e.groups.Dirs(c.plan.Owner, c.plan.ID),
	}}
	var err error
	if c.ids, err = c.e.ids.Take(); err != nil {
		return err
	}
	if c.ids.Many() {
		c.rec.IDs = c.ids.UID
	}
	if err := c.e.records.Create(c.rec); err != nil {
		c.e.ids.Release(c.rec.IDs)
		return err
	}
	c.undo.Add(func() {
		c.e.records.Remove(c.rec)
		c.e.ids.Release(c.rec.IDs)
	})
	return nil
}

// makeGroup makes the cgroup, with its limits.
func (c *creation) makeGroup(context.Context) error {
	g, err := c.e.groups.Make(c.plan.Owner, c.plan.ID)
	if err != nil {
		return err
	}
	c.group = g
	c.undo.Add(func() {
		ctx, cancel := context.WithTimeout(c.clean, lifecycle.KillTimeout)
		defer cancel()
		if err := g.Remove(ctx); err != nil {
			c.e.log.Warn("remove cgroup", "sandbox", c.plan.ID, "error", err)
		}
	})
	if err := g.Limit(c.plan.Limits); err != nil {
		return err
	}
	if c.e.Terms().NoGroups {
		return c.limitJail()
	}
	return handOver(g, c.ids)
}

// give keeps a descriptor for the child, at a number that the agent's do not reach,
// and takes it over.
func (c *creation) give(fd int) (int, error) {
	defer func() { _ = unix.Close(fd) }()
	return c.giveCopy(fd)
}

// giveCopy is give of a descriptor that its owner keeps.
func (c *creation) giveCopy(fd int) (int, error) {
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, aboveFDs)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	c.fds = append(c.fds, high)
	return high, nil
}

func (c *creation) lendFile(f *os.File) (int, error) { return c.giveCopy(int(pidfd.RawFD(f))) }

// open makes or opens all that the child is given.
func (c *creation) open(context.Context) error {
	c.undo.Add(func() { removeFiles(c.plan.Dir) })
	err := each(c.openConfig, c.openPipes, c.openListener, c.openLink, c.openGroups, c.openShown, c.openRoot, c.openAgent, c.openMounts, c.openDevices, c.openJail)
	if err != nil {
		return err
	}
	if c.script, err = newScript(); err != nil {
		return err
	}
	return c.script.write(c.e, c.plan, c.ids, c.h)
}

// each does one after the other until one fails.
func each(do ...func() error) error {
	for _, f := range do {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (c *creation) openConfig() error {
	config, err := pidfd.ConfigPipe(c.plan.Agent.Config)
	if err == nil {
		c.h.config, err = c.give(config)
	}
	return err
}

// openPipes makes what the child and the agent are waited for by.
func (c *creation) openPipes() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	if c.h.null, err = c.give(null); err != nil {
		return err
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	_ = unix.SetNonblock(fds[0], true)
	c.ready = os.NewFile(uintptr(fds[0]), "ready")
	if c.h.ready, err = c.give(fds[1]); err != nil {
		return err
	}
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	c.goOn, c.h.goOn = fds[1], fds[1]
	c.h.goRead, err = c.give(fds[0])
	return err
}

func (c *creation) openListener() error {
	fd, err := lifecycle.ListenAgent(c.plan.Dir)
	if err == nil {
		c.h.listener, err = c.give(fd)
	}
	return err
}

func (c *creation) openLink() (err error) {
	if c.plan.Link == nil {
		return nil
	}
	if c.h.guest, err = c.lendFile(c.plan.Link.Guest); err != nil {
		return err
	}
	c.h.far, err = c.lendFile(c.plan.Link.Far)
	return err
}

func (c *creation) openGroups() error {
	join, guest, err := c.group.Joins()
	c.join = append(join, guest...)
	if err != nil {
		return err
	}
	for _, f := range join {
		fd, err := c.lendFile(f)
		if err != nil {
			return err
		}
		c.h.join = append(c.h.join, fd)
	}
	for _, f := range guest {
		fd, err := c.lendFile(f)
		if err != nil {
			return err
		}
		c.h.groups = append(c.h.groups, fd)
	}
	return nil
}

// fork starts a script in new namespaces, which are made by the first of the ids if they are
// many, and in the group of version 2 when there is one.
func (e *Engine) fork(ctx context.Context, s *script, flags uint64, ids hostrootfs.IDs, g *cgroup.Group) (*pidfd.Process, error) {
	group := -1
	if dir := g.Unified(); dir != "" {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open cgroup: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		group = fd
	}
	var p *pidfd.Process
	err := e.spawner.Do(ctx, func() error {
		var pid, pfd int
		err := ids.Create(func() (err error) {
			pid, pfd, err = s.fork(flags, group)
			return err
		})
		if err != nil {
			return err
		}
		if p, err = pidfd.New(pid, pfd); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return err
	})
	return p, err
}

// start forks the child into its cgroup and namespaces.
func (c *creation) start(ctx context.Context) error {
	flags := uint64(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET)
	if c.e.jail == nil {
		flags |= unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	}
	p, err := c.e.fork(ctx, c.script, flags, c.ids, c.group)
	// From here on only the child has these: their end is its death.
	c.closeFDs()
	if err != nil {
		return err
	}
	c.undo.Add(func() {
		ctx, cancel := context.WithTimeout(c.clean, lifecycle.KillTimeout)
		defer cancel()
		if err := killAll(ctx, p, c.e.jail != nil); err != nil {
			c.e.log.Warn("wait for killed process", "sandbox", c.plan.ID, "pid", p.ID.PID, "error", err)
			c.script = nil // it may still be used
			return
		}
		p.Close()
	})
	c.child = p
	if c.e.jail != nil {
		c.rec.Jail = p.ID
	} else {
		c.rec.Init = p.ID
	}
	return c.e.records.Update(c.rec)
}

// mapIDs gives the child its ids, maps the ids of what it is going to mount likewise,
// and lets it go on.
func (c *creation) mapIDs(context.Context) error {
	if err := c.ids.Write(c.child.ID.PID); err != nil {
		return err
	}
	if c.ids.Many() {
		ns, err := os.Open("/proc/" + strconv.Itoa(c.child.ID.PID) + "/ns/user")
		if err != nil {
			return fmt.Errorf("open user namespace: %w", err)
		}
		defer ns.Close()
		if err := c.idmap(ns); err != nil {
			return err
		}
	}
	_, err := unix.Write(c.goOn, []byte{1})
	_ = unix.Close(c.goOn)
	c.goOn = -1
	return err
}

// waitAgent waits until the agent listens. One that ended says why, or its jail does.
func (c *creation) waitAgent(ctx context.Context) error {
	err := lifecycle.WaitAgent(ctx, c.ready)
	if !errors.Is(err, lifecycle.ErrAgentEnded) {
		return err
	}
	// The child is dead, or soon.
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	if err := c.child.Wait(ctx); err != nil {
		return err
	}
	if err := c.script.failure(); err != nil {
		return err
	}
	if words := lastWords(c.plan.Dir); words != "" {
		return fmt.Errorf("%w: %s", err, words)
	}
	return err
}

// rollback takes back all that was made, newest first.
func (c *creation) rollback() {
	c.undo.Run()
	c.closeFiles()
}

func (c *creation) closeFDs() {
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
	c.fds = nil
}

func (c *creation) closeFiles() {
	c.closeFDs()
	if c.goOn >= 0 {
		_ = unix.Close(c.goOn)
		c.goOn = -1
	}
	for _, fd := range []*int{&c.tell, &c.listener, &c.mount} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	for _, f := range append(c.join, c.ready, c.executed) {
		if f != nil {
			f.Close()
		}
	}
	for _, fd := range c.kept {
		_ = unix.Close(fd)
	}
	if c.script != nil {
		c.script.free()
	}
}

// classify turns what went wrong into what a caller may read. Details of the host go
// to the log only.
func (c *creation) classify(ctx context.Context, step string, err error) error {
	c.e.log.Warn("create failed", "sandbox", c.plan.ID, "step", step, "error", err)
	if known := lifecycle.CreateError(ctx, c.plan.ID, step, err); known != nil {
		return known
	}
	if at, ok := errors.AsType[*stepError](err); ok {
		step = at.what
	}
	return api.Errorf(api.CodeInternal, "create sandbox: the kernel refused to %s", step).
		WithHint("the daemon's log has the details; cloche doctor tells what this machine lacks").WithCause(err)
}

// removeFiles removes what the engine leaves in a plan's directory.
func removeFiles(dir string) {
	_ = os.Remove(filepath.Join(dir, lifecycle.AgentSocket))
	_ = os.Remove(filepath.Join(dir, jailLog))
}

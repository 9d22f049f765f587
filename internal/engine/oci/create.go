//go:build linux

package oci

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/engine/tap"
)

// Descriptors of the agent, see engine.Agent, from the first that a runtime passes on.
const (
	firstFD = 3
	tapFD   = 6
	groupFD = 9
)

// creation is one Create on its way: what it has made so far, and how to take that
// back.
type creation struct {
	e       *Engine
	plan    engine.Plan
	runtime session
	// clean is for what must be taken back although the caller has gone.
	clean context.Context
	rec   record
	undo  lifecycle.Undo

	ids     hostrootfs.IDs
	group   *cgroup.Group
	ns      namespaces
	sources sources
	stage   *stage
	cover   string
	bundle  string
	given   []*os.File // what the agent gets, from descriptor 3
	ready   *os.File   // the agent writes a byte when it listens
	init    *pidfd.Process
	inst    *instance
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := validate(p); err != nil {
		return nil, err
	}
	b, err := e.runtime(ctx)
	if err != nil {
		return nil, err
	}
	if egress := e.egress(); p.Link != nil && !egress.OK {
		return nil, api.Errorf(api.CodeUnsupported, "create sandbox: the oci engine has no network here: %s", egress.Reason).
			WithHint("give the daemon's machine /dev/net/tun, or use engine gvisor")
	}
	c := &creation{e: e, plan: p, clean: context.WithoutCancel(ctx), runtime: newSession(b, p.Dir), sources: noSources()}
	defer c.closeFiles()
	step, err := lifecycle.TakeSteps(ctx, e.log, p.ID, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: c.record},
		{Name: "make cgroup", Do: c.makeGroup},
		{Name: "make namespaces", Do: c.makeNamespaces},
		{Name: "open files", Do: c.open},
		{Name: "prepare root", Do: c.prepare},
		{Name: "have the runtime create", Do: c.create},
		{Name: "have the runtime start", Do: c.start},
		{Name: "wait for agent", Do: func(ctx context.Context) error { return lifecycle.WaitAgent(ctx, c.ready) }},
	})
	if err != nil {
		c.rollback()
		return nil, classify(ctx, p.ID, step, err)
	}
	c.inst.Expect(false)
	return c.inst, nil
}

// validate refuses what no sandbox of this engine can have.
func validate(p engine.Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := p.RefuseSaved("oci"); err != nil {
		return err
	}
	for _, m := range p.Mounts {
		if m.Pinned {
			return p.RefusePinned("oci", m)
		}
		if kernels(m.Target) {
			return api.Errorf(api.CodeUnsupported, "the oci engine mounts no host directory at %s: the runtime makes /proc, /sys and /dev", m.Target).
				WithHint("mount it elsewhere, or use engine gvisor")
		}
	}
	return p.CheckMountPoints()
}

// record writes down that there is going to be an instance, so that a Sweep after our
// sudden death knows where to look.
func (c *creation) record(context.Context) error {
	c.rec = record{
		Head: lifecycle.Head{
			ID: c.plan.ID, Owner: c.plan.Owner, Dir: c.plan.Dir, Boot: c.e.boot, Cgroups: c.e.groups.Dirs(c.plan.Owner, c.plan.ID),
		},
		Runtime: c.runtime.path,
	}
	if c.plan.DieWithParent {
		start, err := pidfd.StartTime(os.Getpid())
		if err != nil {
			return fmt.Errorf("find out when this process began: %w", err)
		}
		c.rec.Parent = pidfd.ID{PID: os.Getpid(), Start: start}
	}
	c.rec.Group = c.e.groupOf(c.rec)
	var err error
	if c.ids, err = c.e.ids.Take(); err != nil {
		return err
	}
	c.rec.IDs = c.ids.UID
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

// groupOf is what the runtime is told of the cgroup: the same as ours where that is
// possible, which is in the hierarchy of version 2 if there is one.
func (e *Engine) groupOf(rec record) string {
	path := ""
	for _, p := range e.groups.Open(rec.Cgroups).Parts {
		if p.Mount.Version == 2 || path == "" {
			path = groupPath(p.Mount.Path, p.Dir)
		}
	}
	if path == "" {
		path = filepath.Join("/cloche-oci", rec.Owner, rec.ID)
	}
	return path
}

// makeGroup makes the cgroup, with its limits. A cgroup of version 2 belongs to the
// sandbox's root: the agent makes one in it for each process, and nothing else inside
// can see it.
func (c *creation) makeGroup(context.Context) error {
	g, err := c.e.groups.Make(c.plan.Owner, c.plan.ID)
	if err != nil {
		return err
	}
	c.group = g
	c.undo.Add(func() {
		ctx, cancel := context.WithTimeout(c.clean, lifecycle.KillTimeout)
		defer cancel()
		if err := c.e.removeGroup(ctx, c.rec, g); err != nil {
			c.e.log.Warn("remove cgroup", "sandbox", c.plan.ID, "error", err)
		}
	})
	if dir := g.Unified(); dir != "" {
		for _, name := range []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Lchown(filepath.Join(dir, name), int(c.ids.UID), int(c.ids.GID)); err != nil {
				return fmt.Errorf("give cgroup to the sandbox: %w", err)
			}
		}
	}
	return g.Limit(c.plan.Limits)
}

func (c *creation) makeNamespaces(context.Context) (err error) {
	c.ns, err = makeNamespaces(c.runtime.binary, c.ids)
	return err
}

// open makes all that the agent is given.
func (c *creation) open(context.Context) error {
	c.undo.Add(func() { removeFiles(c.plan.Dir) })
	config, err := pidfd.ConfigPipe(c.plan.Agent.Config)
	if err != nil {
		return err
	}
	c.give(os.NewFile(uintptr(config), "config"))
	ready, ours, err := pipe()
	if err != nil {
		return err
	}
	c.ready = ours
	c.give(ready)
	listener, err := lifecycle.ListenAgent(c.plan.Dir)
	if err != nil {
		return err
	}
	c.give(os.NewFile(uintptr(listener), lifecycle.AgentSocket))
	if err := c.openLink(); err != nil {
		return err
	}
	join, guest, err := c.group.Joins()
	for _, f := range join {
		f.Close()
	}
	if err := c.fill(groupFD, len(guest) > 0); err != nil {
		return err
	}
	for _, f := range guest {
		c.give(f)
	}
	return err
}

func (c *creation) give(f *os.File) { c.given = append(c.given, f) }

// fill puts the end of a pipe, of which nothing ever comes, where the agent is given
// nothing: runtimes pass on no gaps.
func (c *creation) fill(upTo int, needed bool) error {
	for needed && firstFD+len(c.given) < upTo {
		w, r, err := pipe()
		if err != nil {
			return err
		}
		w.Close()
		c.give(r)
	}
	return nil
}

// pipe is the two ends of one, the reading one in the poller.
func pipe() (w, r *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	_ = unix.SetNonblock(fds[0], true)
	return os.NewFile(uintptr(fds[1]), "pipe"), os.NewFile(uintptr(fds[0]), "pipe"), nil
}

// openLink makes the network: a loopback, and the link's device where there is a link.
func (c *creation) openLink() error {
	var device *os.File
	err := tap.In(int(c.ns.net.Fd()), func() error {
		if err := tap.Raise(); err != nil || c.plan.Link == nil {
			return err
		}
		var err error
		device, err = tap.Make(c.plan.Link)
		return err
	})
	if err != nil || device == nil {
		return err
	}
	if err := c.fill(tapFD, true); err != nil {
		device.Close()
		return err
	}
	c.give(device)
	for _, f := range []*os.File{c.plan.Link.Guest, c.plan.Link.Far} {
		fd, err := unix.FcntlInt(pidfd.RawFD(f), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("duplicate the link: %w", err)
		}
		c.give(os.NewFile(uintptr(fd), "link"))
	}
	return nil
}

// prepare makes the root where only the runtime can see it.
func (c *creation) prepare(ctx context.Context) (err error) {
	if err := c.openSources(); err != nil {
		return err
	}
	if c.cover, err = cover(c.plan.Dir, c.runtime.path); err != nil {
		return err
	}
	if c.stage, err = enterStage(ctx, c.runtime.hide()); err != nil {
		return err
	}
	t := &tree{at: c.cover, ids: c.ids}
	if err := c.stage.do(ctx, func() error { return t.build(c.plan, c.sources, c.ns, c.e.groups.Shown(c.group)) }); err != nil {
		return err
	}
	if err := os.Mkdir(c.runtime.state, 0o700); err != nil {
		return fmt.Errorf("make the runtime's directory: %w", err)
	}
	c.bundle, err = writeBundle(c.plan.Dir, bundle(c.plan, c.ids, c.cover, c.rec.Group, c.e.groups.Shown(c.group)))
	return err
}

// create has the runtime make the container, which then waits to be started.
func (c *creation) create(ctx context.Context) error {
	c.undo.Add(func() {
		ctx, cancel := context.WithTimeout(c.clean, workTimeout)
		defer cancel()
		if c.init != nil {
			c.init.Kill()
			_ = c.init.Wait(ctx) // its group is waited for
		}
		c.e.forget(ctx, c.rec)
	})
	var unified *os.File
	if dir := c.group.Unified(); dir != "" && len(c.runtime.hide()) > 0 {
		// The runtime does not see that hierarchy: what it starts is born in the group.
		var err error
		if unified, err = os.Open(dir); err != nil {
			return fmt.Errorf("open cgroup: %w", err)
		}
		defer unified.Close()
	}
	err := c.stage.do(ctx, func() error {
		return c.runtime.work(ctx, func(cmd *exec.Cmd) {
			cmd.ExtraFiles = c.given
			if unified != nil {
				cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(unified.Fd())
			}
		}, "create", "--bundle", c.bundle, "--preserve-fds", strconv.Itoa(len(c.given)))
	})
	// From here on only the container has these: their end is its death.
	c.closeGiven()
	if err != nil {
		return err
	}
	return c.hold(ctx)
}

// hold finds the first process and makes it ours: its number comes from the runtime,
// and is believed when it is in the user namespace that only this sandbox has.
func (c *creation) hold(ctx context.Context) error {
	st, err := c.runtime.look(ctx)
	if err != nil {
		return err
	}
	if st.Status != "created" {
		return &runtimeError{verb: "state", err: fmt.Errorf("what it has created is %s", st.Status)}
	}
	p, err := pidfd.New(st.PID, -1)
	if err != nil {
		return &runtimeError{verb: "state", err: err}
	}
	// The descriptor holds the number, so what is seen now is about its process.
	if err := c.ns.has(st.PID); err != nil {
		p.Abandon()
		return &runtimeError{verb: "state", err: err}
	}
	c.init = p
	for _, part := range c.group.Parts {
		if part.Mount.Version != 1 {
			continue
		}
		if err := pidfd.Write(part.Dir, "cgroup.procs", strconv.Itoa(st.PID)); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	c.rec.Init = p.ID
	if err := c.e.records.Update(c.rec); err != nil {
		return err
	}
	c.inst = newInstance(c.e, c.rec, lifecycle.Encode(c.rec), p, c.group)
	c.inst.Expect(true) // until Create has succeeded, it tells of the death itself
	if c.plan.DieWithParent {
		c.inst.watcher, err = c.e.watchOver(c.clean, p)
	}
	return err
}

func (c *creation) start(ctx context.Context) error {
	if err := c.putStandIns(ctx); err != nil {
		return err
	}
	return c.stage.do(ctx, func() error { return c.runtime.work(ctx, nil, "start") })
}

// rollback takes back all that was made, newest first.
func (c *creation) rollback() {
	c.closeFiles()
	c.undo.Run()
	if c.inst != nil {
		c.inst.letGo()
	}
}

func (c *creation) closeGiven() {
	for _, f := range c.given {
		f.Close()
	}
	c.given = nil
}

func (c *creation) closeFiles() {
	c.closeGiven()
	c.ns.close()
	c.sources.close()
	if c.ready != nil {
		c.ready.Close()
	}
	if c.stage != nil {
		c.stage.close()
		c.stage = nil
	}
}

// classify makes an error of Cloche of one that happened in a step.
func classify(ctx context.Context, sandbox, step string, err error) error {
	if known := lifecycle.CreateError(ctx, sandbox, step, err); known != nil {
		return known
	}
	return api.Errorf(api.CodeInternal, "create sandbox: it cannot be done: %s", step).
		WithHint("the daemon's log has the details; cloche doctor tells what this machine lacks").WithCause(err)
}

// removeFiles removes what the engine leaves in a plan's directory.
func removeFiles(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	for _, name := range []string{lifecycle.AgentSocket, "bundle", "state", "runtime.log"} {
		_ = root.RemoveAll(name)
	}
}

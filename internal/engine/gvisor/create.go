//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// maxCrash bounds what is kept of a sentry's last words.
const maxCrash = 64 << 10

// creation is one Create on its way: what it has made so far, and how to take
// that back.
type creation struct {
	e    *Engine
	plan engine.Plan
	// clean is for what must be taken back although the caller has gone.
	clean context.Context
	rec   record
	undo  lifecycle.Undo

	spec       []byte
	null       *os.File
	sentry     command // what the parked sentry is given
	gofer      command
	pooled     *pooled  // nil until there is one
	sync       *os.File // the sentry writes a byte when its control server is up
	ready      *os.File // the agent writes a byte when it listens
	first      *os.File // the connections that the agent is born with
	warm       *os.File
	goferCrash *os.File
	group      *cgroup.Group
	reports    *reports // what the sentry's guard says; nil without rules
	inst       *instance
	executable *executable
	gvisor     string   // the version of the executable
	memory     *checked // nil unless the sandbox continues from its memory
	// late: only a gofer is started, for mounts of a sandbox that has booted.
	late bool
	// waits is the booted sandbox that this is, whose agent is not told its configuration; nil for others.
	waits *booted
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := p.CheckMountPoints(); err != nil {
		return nil, err
	}
	if p.Memory != nil {
		return e.resume(ctx, p)
	}
	ready := e.readyFor(p)
	if inst := ready.claim(ctx); inst != nil {
		ready.want()
		return inst, nil
	}
	c := &creation{e: e, plan: p, clean: context.WithoutCancel(ctx)}
	inst, err := c.make(ctx, lifecycle.Step{Name: "start agent", Do: c.startAgent}, lifecycle.Step{Name: "wait for agent", Do: c.waitAgent})
	if err != nil {
		return nil, err
	}
	e.wantSentry(p)
	ready.want()
	return inst, nil
}

// wantSentry has a sentry ready for the next create or resume that is as this one.
func (e *Engine) wantSentry(p engine.Plan) {
	if e.opts.Warm {
		f := fitOf(p)
		e.sentries.Want(f, e.demandSentry(f))
	}
}

// make takes all steps. Those of begin are what is done with a sentry that has booted.
func (c *creation) make(ctx context.Context, begin ...lifecycle.Step) (*instance, error) {
	step, err := lifecycle.TakeSteps(ctx, c.e.log, c.plan.ID, slices.Concat([]lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: c.record},
		{Name: "open files", Do: c.open},
		{Name: "make cgroup", Do: c.makeGroup},
		{Name: "start processes", Do: c.start},
		{Name: "boot sentry", Do: c.boot},
	}, begin, []lifecycle.Step{
		{Name: "wait for cgroup", Do: c.waitGroup},
	}))
	if err != nil {
		err = c.classify(ctx, step, err) // it reads what the rollback closes
		c.rollback()
		return nil, err
	}
	return c.done(), nil
}

// done is the instance that was made, which has what it keeps of the creation's files.
func (c *creation) done() *instance {
	c.inst.crash, c.pooled.crash = c.pooled.crash, nil
	c.inst.reports, c.reports = c.reports, nil
	c.inst.Expect(false)
	c.closeFiles()
	return c.inst
}

// record writes down that there is going to be an instance, so that a Sweep
// after our sudden death knows where to look.
func (c *creation) record(ctx context.Context) error {
	// Where it takes time, it takes it beside the steps before the start.
	c.executable, c.gvisor = c.e.executables.open(ctx, c.plan.DieWithParent), c.e.version
	if c.plan.Memory != nil {
		if err := c.checkMemory(ctx); err != nil {
			return err
		}
	}
	// Where they are is not the same in every daemon's life.
	groups := c.e.groups.Dirs(c.plan.Owner, c.plan.ID)
	p, name, ok := c.takePooled()
	if ok {
		defer c.e.sentries.Forget(name) // its group is in the record
		c.pooled, groups = p, p.group.Paths()
		c.ownGroup(c.pooled.group)
		c.killOnUndo(c.pooled.proc)
	}
	c.rec = record{
		Head: lifecycle.Head{ID: c.plan.ID, Owner: c.plan.Owner, Dir: c.plan.Dir, Cgroups: groups, Boot: c.e.boot},
		Port: c.plan.Agent.Port, GVisor: c.gvisor, Attached: c.plan.DieWithParent,
	}
	if err := c.e.records.Create(c.rec); err != nil {
		return err
	}
	c.undo.Add(func() { c.e.records.Remove(c.rec) })
	return nil
}

// takePooled returns a sentry that is parked, unless this is a member of a pool itself or needs another executable.
func (c *creation) takePooled() (p *pooled, name string, ok bool) {
	if c.waits != nil || c.gvisor != c.e.version {
		return nil, "", false
	}
	return c.e.sentries.Take(fitOf(c.plan), "")
}

// makeGroup makes the cgroup that everything is started in, if it does not exist
// yet, and sets its limits.
func (c *creation) makeGroup(context.Context) error {
	if c.group == nil {
		g, err := c.e.groups.Make(c.plan.Owner, c.plan.ID)
		if err != nil {
			return err
		}
		c.ownGroup(g)
		c.rec.Cgroups = g.Paths()
	}
	if c.waits != nil {
		return nil // until it is claimed
	}
	return c.group.Limit(c.plan.Limits)
}

func (c *creation) ownGroup(g *cgroup.Group) {
	c.group = g
	c.undo.Add(func() {
		if err := g.Remove(c.clean); err != nil {
			c.e.log.Warn("remove cgroup", "sandbox", c.plan.ID, "error", err)
		}
	})
}

// start forks the gofer, if there is one, and a sentry, if none is parked, into the
// cgroup. Then the sentry is told whose it is.
func (c *creation) start(ctx context.Context) error {
	if err := c.executable.wait(); err != nil {
		return err
	}
	c.inst = &instance{}
	if err := c.fork(ctx); err != nil {
		return err
	}
	c.inst.sentry = c.pooled.proc
	c.rec.Executable = c.pooled.hash
	c.rec.Sentry = c.inst.sentry.ID
	if c.inst.gofer != nil {
		c.rec.Gofer = c.inst.gofer.ID
	}
	// Before the claim: a sentry that has none ends with this process.
	if err := c.e.records.Update(c.rec); err != nil {
		return err
	}
	c.inst.init(c.e, c.rec, lifecycle.Encode(c.rec), c.group)
	c.inst.Expect(true) // until Create has succeeded, it tells of the death itself
	err := c.pooled.claim(&c.sentry, title(c.plan)...)
	c.sentry.close()
	return err
}

func (c *creation) fork(ctx context.Context) error {
	defer c.gofer.close()
	if c.pooled != nil && !c.hasGofer() {
		return nil
	}
	return c.e.spawner.Do(ctx, func() error {
		return c.group.Enter(func(cgroupFD int) error {
			if c.pooled == nil {
				p, err := c.e.startPooled(fitOf(c.plan), c.group, c.executable, cgroupFD)
				if err != nil {
					return err
				}
				c.pooled = p
				c.killOnUndo(p.proc)
			}
			if !c.hasGofer() {
				return nil
			}
			return c.forkGofer(cgroupFD)
		})
	})
}

// forkGofer starts the gofer. It must be called on the spawner's thread, which has entered the group.
func (c *creation) forkGofer(cgroupFD int) error {
	if c.plan.DieWithParent {
		c.gofer.sys.Pdeathsig = syscall.SIGKILL
	}
	c.e.isolate(&c.gofer, c.executable, true, cgroupFD)
	p, err := c.gofer.spawn(c.null)
	if err != nil {
		return fmt.Errorf("start gofer: %w", err)
	}
	c.killOnUndo(p)
	_ = pidfd.SetOOMScore(p.ID.PID, pidfd.OOMSandbox())
	c.inst.gofer = p
	return nil
}

// title is the command line of the sentry of a plan that others are shown.
func title(p engine.Plan) []string { return []string{early.Sentry, "--bundle=" + p.Dir, p.ID} }

// hasGofer reports whether it is started with a gofer.
func (c *creation) hasGofer() bool {
	return len(c.plan.Mounts) > 0 || c.waits != nil && c.waits.kind.slots != slots{}
}

// killOnUndo also waits: what comes earlier in the undo stack, the cgroup, must
// be empty by then.
func (c *creation) killOnUndo(p *pidfd.Process) {
	c.undo.Add(func() {
		ctx, cancel := context.WithTimeout(c.clean, lifecycle.KillTimeout)
		defer cancel()
		p.Kill()
		if err := p.Wait(ctx); err != nil {
			c.e.log.Warn("wait for killed process", "sandbox", c.plan.ID, "pid", p.ID.PID, "error", err)
			return
		}
		p.Close()
	})
}

// isolate says in which namespaces, as whom and in which cgroup a gofer, or any
// other process, is started.
func (e *Engine) isolate(cmd *command, x *executable, gofer bool, cgroupFD int) {
	cmd.exe = x.file
	cmd.sys.Cloneflags = unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	if cgroupFD >= 0 {
		cmd.sys.UseCgroupFD, cmd.sys.CgroupFD = true, cgroupFD
	}
	if gofer && !e.rootless {
		// Serves files of every owner, in a mount namespace that holds only
		// the plan's mounts, with the six capabilities that takes. The user
		// namespace has every id and yet is not the first one: only there would
		// CAP_CHOWN reach files whose owner an idmapped mount leaves out.
		all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
		cmd.sys.Cloneflags |= unix.CLONE_NEWUSER
		cmd.sys.UidMappings, cmd.sys.GidMappings = all, all
		cmd.sys.GidMappingsEnableSetgroups = true
		return
	}
	// Root of a user namespace in which only one id exists: enough to make an
	// empty root directory; every capability is dropped before the sandbox runs.
	uid, gid := nobody, nobody
	if e.rootless {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	cmd.sys.Cloneflags |= unix.CLONE_NEWUSER
	cmd.sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	cmd.sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	if !e.rootless {
		// Drops the supplementary groups too, which a normal user cannot.
		cmd.sys.GidMappingsEnableSetgroups = true
		cmd.sys.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	}
}

const nobody = 65534

// boot waits until the sentry's control server is up.
func (c *creation) boot(ctx context.Context) error {
	_, err := lifecycle.ReadFirst(ctx, c.sync, make([]byte, 1))
	return sentryError(err)
}

// startAgent gives the sandbox its network and its first process.
func (c *creation) startAgent(ctx context.Context) error {
	if err := c.inst.ctl.call(ctx, callSetNetwork, networkArgs(c.plan.Link), nil); err != nil {
		return err
	}
	return c.inst.ctl.call(ctx, callStart, &c.plan.ID, nil)
}

// waitAgent waits for the one byte, or the line of complaint, of the agent.
func (c *creation) waitAgent(ctx context.Context) error {
	if err := lifecycle.WaitAgent(ctx, c.ready); err != nil {
		return sentryError(err)
	}
	first, err := net.FileConn(c.first)
	if err != nil {
		return err
	}
	warm, err := net.FileConn(c.warm)
	if err != nil {
		first.Close()
		return err
	}
	c.inst.keepBorn(first, warm)
	return nil
}

// waitGroup takes the result of moving the first stub.
func (c *creation) waitGroup(context.Context) error {
	<-c.pooled.settled
	return c.pooled.unsettled
}

// errSentryDied is the end of file where a byte was expected.
var errSentryDied = errors.New("the sentry ended before it was ready")

// sentryError says so of the end of a pipe whose other end only the sandbox holds.
func sentryError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, lifecycle.ErrAgentEnded) {
		return errSentryDied
	}
	return err
}

// rollback takes back all that was made, newest first.
func (c *creation) rollback() {
	if c.inst != nil && c.inst.ctl != nil {
		c.inst.ctl.close()
	}
	c.undo.Run()
	if c.inst != nil && c.inst.Buried() != nil && c.inst.sentry.Dead() {
		<-c.inst.Buried()
	}
	if c.pooled != nil {
		c.pooled.closeFiles()
		<-c.pooled.settled
	}
	c.closeFiles()
	c.sentry.close()
	c.gofer.close()
}

func (c *creation) closeFiles() {
	for _, f := range []*os.File{c.null, c.sync, c.ready, c.first, c.warm, c.goferCrash} {
		if f != nil {
			f.Close()
		}
	}
	if c.pooled != nil {
		c.pooled.closeFiles()
	}
	if c.reports != nil {
		c.reports.close()
	}
	if c.executable != nil {
		c.executable.close()
	}
}

// classify turns what went wrong into what a caller may read. Details of the
// host go to the log only.
func (c *creation) classify(ctx context.Context, step string, err error) error {
	c.e.log.Warn("create failed", "sandbox", c.plan.ID, "step", step, "error", err,
		"sentry", c.sentryWords(), "gofer", lastWords(c.goferCrash))
	if known := lifecycle.CreateError(ctx, c.plan.ID, step, err); known != nil {
		return known
	}
	return api.Errorf(api.CodeInternal, "create sandbox: gVisor could not %s", step).
		WithHint("the daemon's log has the details; cloche doctor tells what this machine lacks").WithCause(err)
}

func (c *creation) sentryWords() string {
	if c.pooled == nil {
		return ""
	}
	return lastWords(c.pooled.crash)
}

// lastWords is what a process wrote to its standard error, without the zeros
// of the file it was given.
func lastWords(f *os.File) string {
	if f == nil {
		return ""
	}
	b := make([]byte, maxCrash)
	n, _ := f.ReadAt(b, 0)
	return string(bytes.TrimRight(b[:n], "\x00"))
}

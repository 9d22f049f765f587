//go:build linux

package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

// maxConfig bounds the agent's configuration: it must fit into a pipe.
const maxConfig = 1 << 20

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
	undo  []func()

	spec       []byte
	null       *os.File
	sentry     command
	gofer      command
	sync       *os.File // the sentry writes a byte when its control server is up
	ready      *os.File // the agent writes a byte when it listens
	first      *os.File // the connection that the agent is born with
	crash      *os.File // what the sentry wrote to its standard error
	goferCrash *os.File
	group      *group
	inst       *instance
	adopted    chan error // the end of group.adopt; nil until that has begun
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := validate(p); err != nil {
		return nil, err
	}
	c := &creation{e: e, plan: p, clean: context.WithoutCancel(ctx)}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"record", c.record},
		{"open files", c.open},
		{"make cgroup", c.makeGroup},
		{"start processes", c.start},
		{"boot sentry", c.boot},
		{"start agent", c.startAgent},
		{"wait for agent", c.waitAgent},
		{"wait for cgroup", c.waitGroup},
	}
	for _, s := range steps {
		began := time.Now()
		err := s.do(ctx)
		e.log.Debug("create step", "sandbox", p.ID, "step", s.name, "took", time.Since(began))
		if err != nil {
			err = c.classify(ctx, s.name, err)
			c.rollback()
			return nil, err
		}
	}
	c.inst.crash, c.crash = c.crash, nil
	c.inst.asked.Store(false)
	c.closeFiles()
	return c.inst, nil
}

func validate(p engine.Plan) error {
	switch {
	case !safeName(p.ID) || !safeName(p.Owner):
		return cloche.Errorf(cloche.CodeInternal, "plan: id %q or owner %q is not safe as a file name", p.ID, p.Owner)
	case len(p.Agent.Argv) == 0 || !filepath.IsAbs(p.Agent.Target):
		return cloche.Errorf(cloche.CodeInternal, "plan: no agent")
	case len(p.Agent.Config) > maxConfig:
		return cloche.Errorf(cloche.CodeInternal, "plan: the agent's configuration is over %d bytes", maxConfig)
	case p.Agent.Port <= 0 || p.Agent.Port > 65535:
		return cloche.Errorf(cloche.CodeInternal, "plan: port %d of the agent is out of range", p.Agent.Port)
	}
	for _, t := range p.Tmpfs {
		// A memory filesystem without a size could take all memory there is.
		if t.SizeBytes <= 0 {
			return cloche.Errorf(cloche.CodeInternal, "plan: tmpfs %s has no size", t.Target)
		}
	}
	return nil
}

func safeName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 200 && !strings.ContainsAny(s, "/\x00\n")
}

// record writes down that there is going to be an instance, so that a Sweep
// after our sudden death knows where to look.
func (c *creation) record(context.Context) error {
	c.rec = record{
		ID: c.plan.ID, Owner: c.plan.Owner, Dir: c.plan.Dir, Port: c.plan.Agent.Port,
		// Where they are is not the same in every daemon's life.
		Cgroups: c.e.groups.dirs(c.plan.Owner, c.plan.ID),
	}
	if err := c.e.records.create(c.rec); err != nil {
		return err
	}
	c.undo = append(c.undo, func() { c.e.records.remove(c.rec) })
	return nil
}

// makeGroup makes the cgroup, with its limits, that everything is started in.
func (c *creation) makeGroup(context.Context) error {
	g, err := c.e.groups.make(c.plan.Owner, c.plan.ID, c.plan.Limits)
	if err != nil {
		return err
	}
	c.group = g
	c.rec.Cgroups = g.paths()
	c.undo = append(c.undo, func() {
		if err := g.remove(c.clean); err != nil {
			c.e.log.Warn("remove cgroup", "sandbox", c.plan.ID, "error", err)
		}
	})
	return nil
}

// start forks the gofer, if there is one, and the sentry into the cgroup.
func (c *creation) start(ctx context.Context) error {
	err := c.e.spawner.do(ctx, func() error {
		return c.group.enter(func(cgroupFD int) error {
			if len(c.plan.Mounts) > 0 {
				c.prepare(&c.gofer, cgroupFD)
				p, err := c.gofer.spawn(c.null)
				if err != nil {
					return fmt.Errorf("start gofer: %w", err)
				}
				c.killOnUndo(p)
				c.inst = &instance{gofer: p}
			}
			c.prepare(&c.sentry, cgroupFD)
			p, err := c.sentry.spawn(c.null)
			if err != nil {
				return fmt.Errorf("start sentry: %w", err)
			}
			c.killOnUndo(p)
			if c.inst == nil {
				c.inst = &instance{}
			}
			c.inst.sentry = p
			// Whatever the sentry forks from now on inherits this: when memory
			// runs out, a stub is killed and not the sentry, which gets its own
			// value back when it has forked the first.
			setOOMScore(p.pid, 1000)
			// Lets the sentry fault in much memory at once by locking it for a
			// moment. Only root can allow it; it is slower otherwise.
			unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
			_ = unix.Prlimit(p.pid, unix.RLIMIT_MEMLOCK, &unlimited, nil)
			return nil
		})
	})
	c.sentry.close()
	c.gofer.close()
	if err != nil {
		return err
	}
	c.rec.Sentry = processID{c.inst.sentry.pid, c.inst.sentry.start}
	if c.inst.gofer != nil {
		c.rec.Gofer = processID{c.inst.gofer.pid, c.inst.gofer.start}
	}
	if err := c.e.records.update(c.rec); err != nil {
		return err
	}
	c.inst.init(c.e, c.rec, c.group)
	c.inst.asked.Store(true) // until Create has succeeded, it tells of the death itself
	return nil
}

// killOnUndo also waits: what comes earlier in the undo stack, the cgroup, must
// be empty by then.
func (c *creation) killOnUndo(p *process) {
	c.undo = append(c.undo, func() {
		ctx, cancel := context.WithTimeout(c.clean, killTimeout)
		defer cancel()
		p.kill()
		if err := p.wait(ctx); err != nil {
			c.e.log.Warn("wait for killed process", "sandbox", c.plan.ID, "pid", p.pid, "error", err)
			return
		}
		p.close()
	})
}

// prepare says in which namespaces, as whom and in which cgroup a process is
// started.
func (c *creation) prepare(cmd *command, cgroupFD int) {
	cmd.exe = c.e.opts.ExePath
	cmd.sys.Cloneflags = unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	if cgroupFD >= 0 {
		cmd.sys.UseCgroupFD, cmd.sys.CgroupFD = true, cgroupFD
	}
	if c.plan.DieWithParent {
		cmd.sys.Pdeathsig = syscall.SIGKILL
	}
	if cmd == &c.gofer && !c.e.rootless {
		// Serves files of every owner, in a mount namespace that holds nothing
		// but the plan's mounts, with the six capabilities that takes. The user
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
	if c.e.rootless {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	cmd.sys.Cloneflags |= unix.CLONE_NEWUSER
	cmd.sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	cmd.sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	if !c.e.rootless {
		// Drops the supplementary groups too, which a normal user cannot.
		cmd.sys.GidMappingsEnableSetgroups = true
		cmd.sys.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	}
}

const nobody = 65534

// boot waits until the sentry's control server is up.
func (c *creation) boot(ctx context.Context) error {
	ctx, cancel := withTimeout(ctx, bootTimeout)
	defer cancel()
	if _, err := c.read(ctx, c.sync, 1); err != nil {
		return err
	}
	setOOMScore(c.inst.sentry.pid, 0)
	// Takes the kernel some milliseconds, which the agent's start takes as well.
	// No process of the sandbox but the agent exists until both are done.
	c.adopted = make(chan error, 1)
	go func() { c.adopted <- c.group.adopt(c.inst.sentry.pid) }()
	return nil
}

// startAgent gives the sandbox its loopback device and its first process.
func (c *creation) startAgent(ctx context.Context) error {
	net := boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}}
	if err := c.inst.ctl.call(ctx, boot.ContMgrSetNetworkArgs, &net, nil); err != nil {
		return err
	}
	return c.inst.ctl.call(ctx, boot.ContMgrRootContainerStart, &c.plan.ID, nil)
}

// waitAgent waits for the one byte, or the line of complaint, of the agent.
func (c *creation) waitAgent(ctx context.Context) error {
	ctx, cancel := withTimeout(ctx, bootTimeout)
	defer cancel()
	b, err := c.read(ctx, c.ready, 1)
	if err != nil {
		return err
	}
	if b[0] >= ' ' && b[0] < 0x7f {
		rest := make([]byte, 512)
		_ = c.ready.SetReadDeadline(time.Now().Add(time.Second))
		n, _ := io.ReadAtLeast(bufio.NewReader(c.ready), rest, 1)
		line, _, _ := strings.Cut(string(b)+string(rest[:n]), "\n")
		return agentError(line)
	}
	conn, err := net.FileConn(c.first)
	if err != nil {
		return err
	}
	c.inst.keepFirst(conn)
	return nil
}

// waitGroup takes the result of moving the stub, at most once.
func (c *creation) waitGroup(context.Context) error {
	if c.adopted == nil {
		return nil
	}
	err := <-c.adopted
	c.adopted = nil
	return err
}

// agentError is what the agent said instead of becoming ready. It comes from
// inside.
type agentError string

func (e agentError) Error() string { return fmt.Sprintf("the agent said: %q", string(e)) }

// errSentryDied is the end of file where a byte was expected.
var errSentryDied = errors.New("the sentry ended before it was ready")

// read reads n bytes from a pipe whose other end only the sandbox holds.
func (c *creation) read(ctx context.Context, f *os.File, n int) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, n)
	if _, err := io.ReadFull(f, b); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return nil, errSentryDied
		}
		return nil, err
	}
	return b, nil
}

// rollback takes back all that was made, newest first.
func (c *creation) rollback() {
	_ = c.waitGroup(c.clean) // the first error is the one to tell
	if c.inst != nil && c.inst.ctl != nil {
		c.inst.ctl.close()
	}
	for i := len(c.undo) - 1; i >= 0; i-- {
		c.undo[i]()
	}
	if c.inst != nil && c.inst.buried != nil && c.inst.sentry.dead() {
		<-c.inst.buried
	}
	c.closeFiles()
	c.sentry.close()
	c.gofer.close()
}

func (c *creation) closeFiles() {
	for _, f := range []*os.File{c.null, c.sync, c.ready, c.first, c.crash, c.goferCrash} {
		if f != nil {
			f.Close()
		}
	}
}

// classify turns what went wrong into what a caller may read. Details of the
// host go to the log only.
func (c *creation) classify(ctx context.Context, step string, err error) error {
	c.e.log.Warn("create failed", "sandbox", c.plan.ID, "step", step, "error", err,
		"sentry", lastWords(c.crash), "gofer", lastWords(c.goferCrash))
	if said, ok := errors.AsType[agentError](err); ok {
		return cloche.Errorf(cloche.CodeInternal, "create sandbox: %w", said)
	}
	if ours, ok := errors.AsType[*cloche.Error](err); ok {
		return ours
	}
	switch {
	case errors.Is(err, context.Canceled):
		return cloche.Errorf(cloche.CodeCanceled, "create sandbox: canceled while: %s", step).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		e := cloche.Errorf(cloche.CodeTimeout, "create sandbox: no answer in time from: %s", step).WithCause(err)
		e.Retryable = true
		return e
	case errors.Is(err, os.ErrExist) && step == "record":
		return cloche.Errorf(cloche.CodeExists, "create sandbox: %s exists", c.plan.ID).WithCause(err)
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSPC):
		e := cloche.Errorf(cloche.CodeNoCapacity, "create sandbox: the machine has no room for it (%s)", step).WithCause(err)
		e.Retryable = true
		return e
	case errors.Is(err, errSpawnerClosed):
		return cloche.Errorf(cloche.CodeUnavailable, "create sandbox: the engine is shut down").WithCause(err)
	}
	return cloche.Errorf(cloche.CodeInternal, "create sandbox: gVisor could not %s", step).
		WithHint("the daemon's log has the details; cloche doctor tells what this machine lacks").WithCause(err)
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

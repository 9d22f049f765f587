//go:build linux

package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// A spare is a creation that was begun before there was a plan, as far as it goes: the
// agent is executed in namespaces and groups of its own, with ids of its own, and waits
// for its configuration. It has seen no request, no image but its own and no mount. It
// is an ordinary process: what kills it kills no other sandbox. Without the daemon its
// configuration ends, and so does it.

// kind is what a plan must have in common with a spare.
type kind struct {
	owner, image, target, argv string
	uid                        uint32
	dies                       bool
	file                       string // of the image, as it is now
}

// maxTold is how much of a configuration a spare can be told: what goes into a socket at
// once, and more than an agent reads.
const maxTold = 64 << 10

// valid reports whether the image of the agent is still the same.
func (k kind) valid() bool {
	is, err := fileAt(k.image)
	return err == nil && is == k.file
}

// fileAt says which file there is at a path, and in which state.
func fileAt(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim), nil
}

// kindOf is a plan's; ok is of one that a spare can be made for.
func kindOf(p engine.Plan) (k kind, ok bool) {
	file, err := fileAt(p.Agent.Image)
	if len(p.Agent.Argv) == 0 || programOf(p.Agent) == "" || err != nil {
		return kind{}, false
	}
	return kind{
		owner: p.Owner, image: p.Agent.Image, target: p.Agent.Target, argv: strings.Join(p.Agent.Argv, "\x00"), uid: p.Agent.UID, dies: p.DieWithParent,
		file: file,
	}, true
}

// programOf is the agent's name in its image; empty when it is elsewhere.
func programOf(a engine.Agent) string {
	name, ok := strings.CutPrefix(path.Clean(a.Argv[0]), path.Clean(a.Target)+"/")
	if !ok {
		return ""
	}
	return name
}

func (k kind) plan(id string) engine.Plan {
	return engine.Plan{
		ID: id, Owner: k.owner, DieWithParent: k.dies,
		Agent: engine.Agent{Image: k.image, Target: k.target, Argv: strings.Split(k.argv, "\x00"), UID: k.uid},
	}
}

// newWarm begins one and waits until its agent is executed.
func (e *Engine) newWarm(ctx context.Context, k kind, id string) (*creation, error) {
	c := newCreation(ctx, e, k.plan(id))
	err := c.do(ctx, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: c.record},
		{Name: "make cgroup", Do: c.makeGroup},
		{Name: "open files", Do: c.openWarm},
		{Name: "start process", Do: c.start},
		{Name: "make ids", Do: c.mapIDs},
		{Name: "wait for execution", Do: c.awaitExecution},
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openWarm opens what an agent is given whatever the plan says.
func (c *creation) openWarm(context.Context) error {
	err := each(c.openPipes, c.openConversation, c.openGroups, c.openShown, c.openAgent, c.openDevices)
	if err != nil {
		return err
	}
	// It has no place yet.
	if c.mount, err = unix.FcntlInt(uintptr(c.h.agent.fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		c.mount = -1
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	if c.script, err = newScript(); err != nil {
		return err
	}
	return c.script.wait(c.plan, c.ids, c.h, programOf(c.plan.Agent))
}

// openConversation makes what is used when there is a plan: the socket that the agent
// is told its configuration by, and the one that it is going to accept on; and a pipe
// that no process has any more when the agent is executed.
func (c *creation) openConversation() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	c.tell = pair[0]
	if c.h.config, err = c.give(pair[1]); err != nil {
		return err
	}
	if c.listener, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if c.h.listener, err = c.giveCopy(c.listener); err != nil {
		return err
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	_ = unix.SetNonblock(fds[0], true)
	c.executed = os.NewFile(uintptr(fds[0]), "executed")
	_, err = c.give(fds[1])
	return err
}

// awaitExecution waits until the agent is executed.
func (c *creation) awaitExecution(ctx context.Context) error {
	if _, err := lifecycle.ReadFirst(ctx, c.executed, make([]byte, 1)); !errors.Is(err, io.EOF) {
		return err
	}
	if err := c.script.failure(); err != nil {
		return err
	}
	if c.child.Dead() {
		return lifecycle.ErrAgentEnded
	}
	// It has memory of its own now.
	_ = pidfd.SetOOMScore(c.child.ID.PID, pidfd.OOMSandbox())
	c.script.free()
	c.script = nil
	for _, f := range append(c.join, c.executed) {
		f.Close()
	}
	c.join, c.executed = nil, nil
	return nil
}

// finish makes of a spare the instance that a plan says.
func (c *creation) finish(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	warm := c.rec
	c.plan, c.clean = p, context.WithoutCancel(ctx)
	err := c.do(ctx, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: c.adopt},
		{Name: "limit", Do: func(context.Context) error { return c.group.Limit(p.Limits) }},
		{Name: "open files", Do: c.openRest},
		{Name: "make the root", Do: c.furnish},
		{Name: "wait for agent", Do: c.hear},
		{Name: "find agent", Do: c.findAgent},
	})
	c.e.records.Remove(warm)
	if err != nil {
		return nil, err
	}
	return c.done(), nil
}

// adopt writes down whose the agent is now.
func (c *creation) adopt(context.Context) error {
	rec := c.rec
	rec.ID, rec.Dir = c.plan.ID, c.plan.Dir
	if err := c.e.records.Create(rec); err != nil {
		return err
	}
	c.rec = rec
	return nil
}

// openRest opens what the plan says.
func (c *creation) openRest(context.Context) error {
	c.undo.Add(func() { removeFiles(c.plan.Dir) })
	if err := each(c.nameListener, c.openLink, c.openRoot, c.openMounts); err != nil {
		return err
	}
	ns, err := os.Open("/proc/" + strconv.Itoa(c.child.ID.PID) + "/ns/user")
	if err != nil {
		return fmt.Errorf("open user namespace: %w", err)
	}
	defer ns.Close()
	if err := c.idmap(ns); err != nil {
		return err
	}
	if c.h.agent.fd, err = c.giveCopy(c.mount); err != nil {
		return err
	}
	agent, err := c.giveCopy(c.child.Descriptor())
	if err != nil {
		return err
	}
	tell, err := c.giveCopy(c.tell)
	if err != nil {
		return err
	}
	if c.script, err = newScript(); err != nil {
		return err
	}
	return c.script.furnish(c.plan, c.ids, c.h, agent, tell)
}

// nameListener has the agent's socket listen where openListener's would.
func (c *creation) nameListener() error { return lifecycle.ListenAt(c.listener, c.plan.Dir) }

// furnish has the root made around the agent, and the agent told.
func (c *creation) furnish(ctx context.Context) error {
	p, err := c.e.fork(ctx, c.script, 0, hostrootfs.IDs{}, &cgroup.Group{})
	c.closeFDs()
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, lifecycle.BootTimeout)
	defer cancel()
	if err := p.Wait(waiting); err != nil {
		p.Kill()
		ended, cancel := context.WithTimeout(c.clean, lifecycle.KillTimeout)
		defer cancel()
		if late := p.Wait(ended); late != nil {
			c.script = nil // it may still be used
			return errors.Join(err, late)
		}
		p.Close()
		return err
	}
	how := p.How()
	p.Close()
	if err := c.script.failure(); err != nil {
		return err
	}
	if how != "ended with exit code 0" {
		return fmt.Errorf("what makes the root %s: %w", how, unix.EINTR)
	}
	c.told = true
	return nil
}

// hear waits for the agent's word. One that was killed before it said any has heard
// nothing.
func (c *creation) hear(ctx context.Context) error {
	err := c.waitAgent(ctx)
	c.told = !errors.Is(err, lifecycle.ErrAgentEnded)
	return err
}

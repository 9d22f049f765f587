package docker

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/inner"
)

// maxComplaint bounds what is read of an agent that says why it does not listen.
const maxComplaint = 4 << 10

// creation is a Create in progress.
type creation struct {
	e *Engine
	d *daemon
	p engine.Plan
	// try is a label of the container that this Create makes, and of no other.
	try string
	// made: there may be a container, which is ours to remove.
	made  bool
	guard *watcher
	// shared: the daemon sees the files of this machine.
	shared bool
	// said is what the daemon says of itself, once it was asked.
	said *system.Info
}

// info asks the daemon for what it says of itself, once in a Create.
func (c *creation) info(ctx context.Context) (system.Info, error) {
	if c.said == nil {
		answer, err := c.d.Info(ctx, client.InfoOptions{})
		if err != nil {
			return system.Info{}, err
		}
		c.said = &answer.Info
	}
	return *c.said, nil
}

// Create implements engine.Engine. What changes something at the daemon is not cut
// off when the caller goes away: the result would not be known then. The
// caller waits for it, for as long as a start takes, and then it is taken back.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := e.check(p); err != nil {
		return nil, err
	}
	c := &creation{e: e, p: p, try: rand.Text()}
	i, err := c.run(ctx)
	if err != nil {
		c.rollback(ctx)
		return nil, e.classify(ctx, "create sandbox "+p.ID, err)
	}
	return i, nil
}

// check refuses a plan that could not be carried out as it is.
func (e *Engine) check(p engine.Plan) error {
	broken := func(what string) error {
		return api.Errorf(api.CodeInternal, "create sandbox: the plan has %s", what)
	}
	refused := func(what string) error {
		return api.Errorf(api.CodeUnsupported, "engine %s cannot give a sandbox %s", e.opts.Name, what).
			WithHint("leave it out, or use engine gvisor")
	}
	if err := cmp.Or(p.Validate(), p.RefuseSaved(e.opts.Name)); err != nil {
		return err
	}
	switch {
	case !safe(p.ID) || !safe(p.Owner):
		return broken("an id or owner that is no name")
	case len(p.Agent.Config) > inner.MaxConfig:
		return broken("a configuration of the agent that is too long")
	case len(p.Rules) > 0:
		return refused("rules on paths inside a mount, such as the one for " + strconv.Quote(path.Join(p.Rules[0].Target, p.Rules[0].Path)) + ": what is inside may mount nothing there")
	}
	if err := p.CheckMountPoints(daemonPaths()...); err != nil {
		return err
	}
	if fi, err := os.Stat(p.Dir); err != nil || !fi.IsDir() {
		return broken("no directory")
	}
	return nil
}

// daemonPaths are where Docker and Podman make files of their own in a root.
func daemonPaths() []string {
	return []string{
		"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/etc/passwd", "/etc/group",
		"/.dockerenv", "/run/.containerenv", "/run/secrets",
	}
}

func safe(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	})
}

// checkMounts: the daemon is told paths of its own machine, and on this one nothing
// is ever made for one that is missing.
func (c *creation) checkMounts() error {
	if len(c.p.Mounts) > 0 && !c.shared {
		return api.Errorf(api.CodeUnsupported, "the daemon of engine %s is on another machine: directories of this one cannot be mounted there", c.e.opts.Name).
			WithHint("copy the files into the sandbox, or use a daemon of this machine")
	}
	for _, m := range c.p.Mounts {
		if _, err := os.Lstat(m.Source); err != nil {
			return fmt.Errorf("look at what is to be mounted at %s: %w", m.Target, err)
		}
	}
	return nil
}

// checkRuntime refuses a runtime of the operator's choice that the daemon does not have:
// what the daemon would say of it is no more than that something is not valid.
func (c *creation) checkRuntime(ctx context.Context) error {
	name := c.e.opts.Runtime
	if name == "" {
		return nil
	}
	info, err := c.info(ctx)
	if err != nil {
		return err
	}
	if _, ok := info.Runtimes[name]; !ok {
		return api.Errorf(api.CodeUnavailable, "create sandbox %s: the daemon of engine %s has no runtime %s", c.p.ID, c.e.opts.Name, name).
			WithHint("install it and name it in the daemon's configuration, or change %s.runtime", c.e.opts.Name)
	}
	return nil
}

// checkLink refuses a link where the container could not have one.
func (c *creation) checkLink(ctx context.Context) error {
	if c.p.Link == nil {
		return nil
	}
	info, err := c.info(ctx)
	if err != nil {
		return err
	}
	if can := c.e.egress(c.d, info); !can.OK {
		return api.Errorf(api.CodeUnsupported, "engine %s cannot give a sandbox a network link: %s", c.e.opts.Name, can.Reason).
			WithHint("make the sandbox without egress, or use engine gvisor")
	}
	return nil
}

func (c *creation) run(ctx context.Context) (*instance, error) {
	d, problems := c.e.findDaemon(ctx)
	if d == nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, c.e.noDaemon("create sandbox "+c.p.ID, problems)
	}
	c.d = d
	var err error
	if c.shared, err = c.e.shares(ctx, d); err != nil {
		return nil, err
	}
	if err := c.checkMounts(); err != nil {
		return nil, err
	}
	if err := c.checkRuntime(ctx); err != nil {
		return nil, err
	}
	if err := c.checkLink(ctx); err != nil {
		return nil, err
	}
	id, err := c.makeContainer(ctx)
	if err != nil {
		return nil, err
	}
	if c.p.DieWithParent {
		if c.guard, err = c.e.watchOver(d.host, containerName(c.p)); err != nil {
			return nil, fmt.Errorf("start the watcher: %w", err)
		}
	}
	if err := c.start(ctx, id); err != nil {
		return nil, err
	}
	rec := record{
		Version: recordVersion, ID: c.p.ID, Owner: c.p.Owner, Host: d.host, Container: id, Port: c.p.Agent.Port,
		Inner: path.Join(c.p.Agent.Target, inner.Argv0), Volumes: len(c.p.Volumes) > 0,
	}
	if c.p.DieWithParent {
		rec.Parent = self()
	}
	return c.e.instance(d, rec, c.guard)
}

// makeContainer makes the container, of an image and a volume that the daemon has
// already or is given now.
func (c *creation) makeContainer(ctx context.Context) (string, error) {
	s := c.e.storeOf(c.d)
	for try := 0; ; try++ {
		image, volume, err := c.give(ctx, s)
		if err != nil {
			return "", err
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		if err := c.d.makeVolumes(whole, c.p); err != nil {
			cancel()
			return "", err
		}
		made, err := c.d.ContainerCreate(whole, c.options(image, volume))
		cancel()
		switch {
		case err == nil:
			c.made = true
			return made.ID, nil
		case errdefs.IsConflict(err) || c.isAnothers(ctx):
			return "", api.Errorf(api.CodeExists, "create sandbox %s: it exists already", c.p.ID).WithCause(err)
		case errdefs.IsNotFound(err) && try == 0:
			s.forget() // the image was removed
			continue
		case errdefs.IsInvalidArgument(err) && len(c.p.Mounts) > 0:
			return "", api.Errorf(api.CodeUnsupported, "the daemon of engine %s does not take the directories that are to be mounted: it does not see them", c.e.opts.Name).
				WithHint("set %s.shares_host_fs to no where the daemon has files of its own", c.e.opts.Name).WithCause(err)
		}
		c.made = true // it is not known
		return "", err
	}
}

// isAnothers says whether the container of that name is from another Create. Podman
// has no error of its own for that.
func (c *creation) isAnothers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	answer, err := c.d.ContainerInspect(ctx, containerName(c.p), client.ContainerInspectOptions{})
	return err == nil && (answer.Container.Config == nil || answer.Container.Config.Labels[labelTry] != c.try)
}

// give sees that the daemon has the root and the agent.
func (c *creation) give(ctx context.Context, s *store) (image, volume string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	if image, err = s.root(ctx, c.p.Root.Image); err != nil {
		return "", "", err
	}
	volume, err = s.agent(ctx, c.p.Agent)
	return image, volume, err
}

// start starts the container, hands it the agent's configuration and waits until the
// agent listens.
func (c *creation) start(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	att, err := c.d.ContainerAttach(whole, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer att.Close()
	if _, err := c.d.ContainerStart(whole, id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = att.Conn.SetDeadline(past()) })
	defer stop()
	if err := c.cover(whole, id); err != nil {
		return err
	}
	var m *meeting
	if c.p.Link != nil {
		if m, err = c.meet(whole, id); err != nil {
			return err
		}
		defer m.close()
	}
	msg := binary.BigEndian.AppendUint32(nil, uint32(len(c.p.Agent.Config)))
	if _, err := att.Conn.Write(append(msg, c.p.Agent.Config...)); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("hand over the configuration: %w", err))
	}
	err = c.await(m, &att.HijackedResponse)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errAgentDied) {
		return fmt.Errorf("%w: %s", err, c.fate(whole, id))
	}
	return err
}

// fate is what the daemon says of how a container ended.
func (c *creation) fate(ctx context.Context, id string) string {
	answer, err := c.d.inspect(ctx, id)
	if err != nil || answer.Container.State == nil {
		return fmt.Sprintf("it is not known how: %v", err)
	}
	st := answer.Container.State
	return fmt.Sprintf("its container is %s, exit code %d, killed for memory: %t, error %q", st.Status, st.ExitCode, st.OOMKilled, st.Error)
}

// await waits for the agent, and meanwhile hands over the link.
func (c *creation) await(m *meeting, att *client.HijackedResponse) error {
	if m == nil {
		return waitReady(&frames{r: att.Reader})
	}
	var handed error
	var wg sync.WaitGroup
	wg.Go(func() {
		if handed = m.hand(c.p.Link); handed != nil {
			_ = att.Conn.SetDeadline(past()) // there is nothing to wait for
		}
	})
	err := waitReady(&frames{r: att.Reader})
	m.close()
	wg.Wait()
	if err == nil || errors.Is(handed, net.ErrClosed) {
		return err
	}
	return errors.Join(handed, err)
}

// errAgentDied is the cause when the container ended before its agent listened.
var errAgentDied = errors.New("the agent ended before it listened")

// waitReady reads the byte of an agent that listens, or what it says instead.
func waitReady(out io.Reader) error {
	r := bufio.NewReader(io.LimitReader(out, maxComplaint))
	first, err := r.ReadByte()
	if errors.Is(err, io.EOF) {
		return errAgentDied
	}
	if err != nil {
		return fmt.Errorf("wait for the agent: %w", err)
	}
	if first == 0 || first == '\n' {
		return nil
	}
	line, _ := r.ReadString('\n') // what there is of it
	return fmt.Errorf("the agent says: %s", strings.ToValidUTF8(strings.TrimSpace(string(first)+line), "?"))
}

// noDaemon is the error where no daemon answers.
func (e *Engine) noDaemon(what string, problems []api.Problem) error {
	out := api.Errorf(api.CodeUnavailable, "%s: no %s daemon answers", what, e.opts.Name).
		WithHint("start it; `cloche doctor` says how").WithCause(fmt.Errorf("%v", problems))
	out.Retryable = true
	return out
}

// rollback takes back what was made. What cannot be taken back now, Sweep will find
// by its labels.
func (c *creation) rollback(ctx context.Context) {
	if c.made && !c.isAnothers(ctx) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := c.d.remove(ctx, containerName(c.p)); err != nil {
			c.e.log.Error("a container is left of a create that failed", "sandbox", c.p.ID, "error", err)
		}
	}
	if c.guard != nil {
		c.guard.release()
	}
}

// removeTries are for a container on its way up or down, for which each daemon has
// errors of its own.
const removeTries = 20

// inspect looks at a container. One that is being removed is there in part, for
// which Podman has errors of its own.
func (d *daemon) inspect(ctx context.Context, name string) (client.ContainerInspectResult, error) {
	for n := 1; ; n++ {
		answer, err := d.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err == nil || errdefs.IsNotFound(err) || unreachable(err) || n == removeTries {
			return answer, err
		}
		select {
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
			return answer, errors.Join(ctx.Err(), err)
		}
	}
}

// remove kills and removes a container with what belongs to it. One that is not
// there is removed.
func (d *daemon) remove(ctx context.Context, name string) error {
	for n := 1; ; n++ {
		_, err := d.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if unreachable(err) || n == removeTries {
			return err
		}
		select {
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
